/** Prints a line on standard error, because standard output belongs to the program (`eval "$(…)"`). */
export function say(line) {
  process.stderr.write(`sandyard set-up: ${line}\n`)
}

/** A failure of the set-up that the user can fix. It is printed without a stack. */
export class SetUpFailure extends Error {}

/** Runs the main function of a script. Prints a SetUpFailure as its message, with exit code 1. */
export async function runMain(main) {
  try {
    process.exitCode = await main()
  } catch (error) {
    if (!(error instanceof SetUpFailure)) throw error
    say(error.message)
    process.exitCode = 1
  }
}
