/** Prints a line about the progress of a long-running command on standard output. */
export function printStatus(text: string): void {
  process.stdout.write(`sandyard: ${text}\n`)
}
