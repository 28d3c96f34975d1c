import { runCommand } from '../../src/lib/run-command.ts'

/** The folder of the cluster that `npm run test:kubernetes` has started (setup/engines/machine.mjs), or undefined in other runs. */
const MACHINE = process.env['SANDYARD_TEST_KUBERNETES']
const LIMIT_MS = 300_000

/** Returns the reason why this run has no cluster, or false. For `{ skip }`. */
export function whyNoKubernetes(): string | false {
  return MACHINE === undefined ? '`npm run test:kubernetes` runs it, because it starts a Kubernetes' : false
}

/** Runs kubectl as the cluster's administrator, and resolves with its standard output. */
export async function kubectl(...args: readonly string[]): Promise<string> {
  return (await runCommand('kubectl', args, { timeoutMs: LIMIT_MS })).stdout
}

/** Creates or changes an object. */
export async function applyObject(object: object, ...flags: readonly string[]): Promise<void> {
  const script = 'object=$1; shift; printf %s "$object" | kubectl apply -f - "$@"'
  await runCommand('sh', ['-c', script, 'apply', JSON.stringify(object), ...flags], { timeoutMs: LIMIT_MS })
}
