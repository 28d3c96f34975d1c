/** Tells the person at the terminal what a long-running command does. */
export function printStatus(text: string): void {
  process.stdout.write(`sandyard: ${text}\n`)
}
