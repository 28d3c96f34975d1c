/** Tells the person at the terminal what a long-running command does. */
export function say(text: string): void {
  process.stdout.write(`sandyard: ${text}\n`)
}
