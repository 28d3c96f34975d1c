import { hostname } from 'node:os'
import { defaultDataDir, type Config } from '../../config.ts'
import { printStatus } from '../print-status.ts'
import type { RunningControl } from '../server/start-control.ts'
import type { FirstKey } from '../server/first-key.ts'

/** What clients must know of a server: its URL, the certificate that they must trust if it is its own, and its SSH host key. */
type Serving = Pick<RunningControl, 'url' | 'fingerprint' | 'ownCertificate' | 'ssh'>

/** Prints the URL of the API, and the variables that the next commands need in another terminal. */
export function printClientSetup(
  config: Pick<Config, 'dataDir' | 'databaseUrl'>,
  serving: Serving,
  first: FirstKey,
): void {
  printStatus(`ready on ${serving.url} (${hostname()})`)
  if (serving.ssh !== null)
    printStatus(`SSH on port ${String(serving.ssh.port)}; the host key is ${serving.ssh.fingerprint}`)
  if (serving.ownCertificate !== null)
    printStatus(
      `encrypted with a certificate of its own; the SHA-256 of its public key is ${String(serving.fingerprint())}`,
    )
  process.stdout.write(`\n${formatClientSetup(config, serving, first)}`)
}

/**
 * Formats the variables as a script for a shell: those of the public client, and those by which commands of `sandyard` find this
 * installation. Contains the key only if it was just created and the operator named no file for it.
 */
export function formatClientSetup(
  { dataDir, databaseUrl }: Pick<Config, 'dataDir' | 'databaseUrl'>,
  { url, ownCertificate }: Pick<Serving, 'url' | 'ownCertificate'>,
  first: FirstKey,
): string {
  const lines = [
    'export MSB_BACKEND=cloud',
    `export MSB_API_URL=${url}`,
    ...(ownCertificate === null
      ? []
      : [`export SSL_CERT_FILE=${quote(ownCertificate)}    # on other machines: a copy of this file`]),
    ...(dataDir === defaultDataDir() ? [] : [`export SANDYARD_DATA_DIR=${quote(dataDir)}`]),
    ...(databaseUrl === null ? [] : ['# `sandyard` commands also need the DATABASE_URL of this server']),
    ...describeKey(first),
  ]
  return lines.map((line) => `${line}\n`).join('')
}

function describeKey(first: FirstKey): readonly string[] {
  switch (first.kind) {
    case 'existing':
      return ['# export MSB_API_KEY=…    # your key; `npx sandyard key create` creates another one']
    case 'given':
      return ['export MSB_API_KEY="$SANDYARD_API_KEY"    # the key that you gave']
    case 'file':
      return [`export MSB_API_KEY="$(cat ${quote(first.path)})"    # the first key; only its owner can read the file`]
    case 'shown':
      return [
        `export MSB_API_KEY=${first.key}`,
        '',
        '# The key is shown only this once. Then, in another terminal:  npx msb run localhost/demo -- uname -a',
      ]
  }
}

/** Quotes a text for a shell, unless it needs no quotes. */
function quote(text: string): string {
  return /^[\w./:@%+,=-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`
}
