from slotnorm.cli import main

main()
