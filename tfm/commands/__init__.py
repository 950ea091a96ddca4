"""The commands of the console. Each is a thin module with a `main()` that calls the packages below it."""
