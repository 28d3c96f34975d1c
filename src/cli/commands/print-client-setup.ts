import { hostname } from 'node:os'
import { printStatus } from '../print-status.ts'

/**
 * Prints the URL of the API and the environment variables that the public client needs. `newKey` is the key that this
 * start created, or null. With `isKeyGiven`, the key came from SANDYARD_API_KEY and is not printed.
 */
export function printClientSetup({ url, newKey, isKeyGiven }: ClientSetup): void {
  printStatus(`ready on ${url} (${hostname()})`)
  process.stdout.write(`\nexport MSB_BACKEND=cloud\nexport MSB_API_URL=${url}\n`)
  if (newKey === null)
    process.stdout.write('export MSB_API_KEY=…    # your key; `npx sandyard key create` creates another one\n')
  else if (isKeyGiven) process.stdout.write('export MSB_API_KEY="$SANDYARD_API_KEY"    # the key that you gave\n')
  else
    process.stdout.write(
      `export MSB_API_KEY=${newKey}\n\n# The key is shown only this once. Then, in another terminal:  npx msb run localhost/demo -- uname -a\n`,
    )
}

type ClientSetup = { readonly url: string; readonly newKey: string | null; readonly isKeyGiven: boolean }
