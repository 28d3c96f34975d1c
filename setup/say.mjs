/** Says one line of the set-up. Standard error, because standard output belongs to the program (`eval "$(…)"`). */
export function say(line) {
  process.stderr.write(`sandyard set-up: ${line}\n`)
}

/** A set-up that cannot go on: the message is all a person needs, so it is shown without a stack. */
export class SetUpFailure extends Error {}

/** Runs a script's main function; a SetUpFailure becomes its message and exit code 1. */
export async function runMain(main) {
  try {
    process.exitCode = await main()
  } catch (error) {
    if (!(error instanceof SetUpFailure)) throw error
    say(error.message)
    process.exitCode = 1
  }
}
