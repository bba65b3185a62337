export function mountChat(panel) {
  return {refresh() {}};
}
