import { hostname } from 'node:os'
import { printStatus } from '../print-status.ts'
import type { FirstKey } from '../server/first-key.ts'

/**
 * Prints the URL of the API and the environment variables that the public client needs. Prints the key itself only if it
 * was just created and the operator named no file for it.
 */
export function printClientSetup(url: string, first: FirstKey): void {
  printStatus(`ready on ${url} (${hostname()})`)
  process.stdout.write(`\nexport MSB_BACKEND=cloud\nexport MSB_API_URL=${url}\n`)
  process.stdout.write(describeKey(first))
}

function describeKey(first: FirstKey): string {
  switch (first.kind) {
    case 'existing':
      return 'export MSB_API_KEY=…    # your key; `npx sandyard key create` creates another one\n'
    case 'given':
      return 'export MSB_API_KEY="$SANDYARD_API_KEY"    # the key that you gave\n'
    case 'file':
      return `export MSB_API_KEY="$(cat '${first.path}')"    # the first key; only its owner can read the file\n`
    case 'shown':
      return `export MSB_API_KEY=${first.key}\n\n# The key is shown only this once. Then, in another terminal:  npx msb run localhost/demo -- uname -a\n`
  }
}
