"""The page in the browser: static files and the routes that serve them."""
