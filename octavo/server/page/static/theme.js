// Sets the colour theme before the first paint. A classic script, so that nothing flashes.
try {
  const theme = localStorage.getItem('octavo.theme');
  if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
} catch {
  // no storage: the system's theme
}
