"""The commands: thin, each a `main()` over the packages below."""
