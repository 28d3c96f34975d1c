import { hostname } from 'node:os'
import { printStatus } from '../print-status.ts'

/** Prints where the API is and what the public client needs to use it; `key` is one that was just made, or null. */
export function printClientSetup(url: string, key: string | null, isGiven: boolean): void {
  printStatus(`ready on ${url} (${hostname()})`)
  process.stdout.write(`\nexport MSB_BACKEND=cloud\nexport MSB_API_URL=${url}\n`)
  if (key === null)
    process.stdout.write('export MSB_API_KEY=…    # yours; `npx sandyard key create` makes another one\n')
  else if (isGiven) process.stdout.write('export MSB_API_KEY="$SANDYARD_API_KEY"    # the key that you gave\n')
  else
    process.stdout.write(
      `export MSB_API_KEY=${key}\n\n# The key is shown this once. Then, in another terminal:  npx msb run localhost/demo -- uname -a\n`,
    )
}
