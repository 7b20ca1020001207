from slotnorm.cli.verbs import main

main()
