import { existsSync } from 'node:fs'
import { join } from 'node:path'
import type { Command } from 'commander'
import {
  drainWorker,
  formatHoldings,
  listWorkers,
  readWorker,
  removeWorker,
  resumeWorker,
  type FleetWorker,
} from '../../control/workers/fleet.ts'
import { createJoinToken, DEFAULT_TOKEN_LIFETIME_MS } from '../../control/workers/join-tokens.ts'
import { DURATION_RULE, parseDurationMs } from '../../domain/duration.ts'
import { WORKER_LEASE_MS } from '../../domain/workers/lease.ts'
import { requireSameSealingKey } from '../../control/orgs/sealing-key.ts'
import { keyFingerprint } from '../../lib/seal.ts'
import { systemRandom } from '../../lib/random.ts'
import { openDataFolder } from '../server/data-folder.ts'
import { ownFingerprint } from '../server/tls/tls-identity.ts'
import { isWorkerFolder } from '../worker/worker-identity.ts'
import { addSettings, runs, UsageError, type Call } from '../command.ts'
import { operatorCommand, withOperator, type OperatorDeps } from './operator.ts'
import { printJson, printTable } from './output.ts'
import { addBoundsFlags, readBoundsFlags } from './worker-bounds.ts'

/**
 * The exit code of a worker that was removed. A supervisor should not restart it, because it would be refused again.
 */
const REMOVED_EXIT_CODE = 3

const UNPINNED_HELP =
  "let the worker check the server's certificate by its certificate authorities, not by the pinned key: for a proxy with TLS, or --tls-cert"

const HELP = `
Without a subcommand it runs sandboxes for the control plane at --join, until SIGTERM. The first start needs a join token: from
SANDYARD_JOIN_TOKEN, --token-stdin or --token. Later starts need neither --join nor a token. The worker dials the control plane
and listens on no port. If an operator has removed the worker, it ends with exit code ${String(REMOVED_EXIT_CODE)}.

Run the subcommands where the database of the control plane is.`

/**
 * Defines `sandyard worker`, which runs sandboxes for a remote control plane. Its subcommands manage the workers of a
 * control plane.
 */
export function defineWorker(worker: Command): void {
  worker.addHelpText('after', HELP)
  addSettings(
    worker,
    'join',
    'joinToken',
    'insecure',
    'dataDir',
    'driver',
    'requireIsolation',
    'runtime',
    'publish',
    'shutdown',
    'logLevel',
  )
    .option('--token-stdin', 'read the join token from standard input')
    .option('--name <name>', "the worker's name [SANDYARD_WORKER_NAME, default the host's name]")
    .hook('preSubcommand', refuseOwnFlags)
  runs(worker, runAsWorker)
  runs(
    addBoundsFlags(
      operatorCommand(worker, 'token', 'print a join token for one machine; it is shown only this once')
        .option('--name <name>', 'the name that the worker must have')
        .option('--expires-in <duration>', 'how long the token is valid, such as 2h; 24h unless given')
        .option('--unpinned', UNPINNED_HELP)
        .option('--json', 'print JSON'),
    ),
    (call) => withFleet(call, printToken),
  )
  runs(
    operatorCommand(worker, 'list', 'list the workers with their state and use').option('--json', 'print JSON'),
    (call) => withFleet(call, list),
  )
  runs(
    operatorCommand(worker, 'drain <name>', 'give a worker no new runs; its current runs continue to their end')
      .option('--deadline <duration>', 'stop its runs after this time, such as 10m')
      .option('--wait', 'wait until nothing runs there'),
    (call) => withFleet(call, drain),
  )
  runs(operatorCommand(worker, 'resume <name>', 'give a drained worker runs again'), (call) => withFleet(call, resume))
  runs(
    operatorCommand(
      worker,
      'remove <name>',
      'remove a worker for good; refused while it has runs, disks or volumes',
    ).option('--force', 'remove it anyway: its runs are lost, and its sandboxes and volumes begin again, empty'),
    (call) => withFleet(call, remove),
  )
  // Set this only after the subcommands are added, because they would inherit it. `runAsWorker` refuses unknown
  // subcommands.
  worker.allowExcessArguments()
}

/** Refuses flags of `sandyard worker` before a subcommand, where they would have no effect. */
function refuseOwnFlags(worker: Command, subcommand: Command): void {
  const given = worker.options.find((option) => worker.getOptionValue(option.attributeName()) !== undefined)
  if (given !== undefined)
    throw new UsageError(`put ${String(given.long)} after '${subcommand.name()}': before it, the flag has no effect`)
}

async function runAsWorker(call: Call): Promise<number> {
  const [unknown] = call.args
  if (unknown !== undefined)
    throw new UsageError(
      `unknown command 'worker ${unknown}'; the commands are worker token, list, drain, resume and remove, or worker alone`,
    )
  const { runWorker } = await import('../worker/run-worker.ts')
  return (await runWorker(call)) === 'removed' ? REMOVED_EXIT_CODE : 0
}

async function withFleet(call: Call, act: (deps: OperatorDeps, call: Call) => Promise<void>): Promise<void> {
  const { config } = call
  // Refuse the data folder of a worker: opening the embedded database would create an empty database there.
  if (
    config.databaseUrl === null &&
    !existsSync(join(config.dataDir, 'database')) &&
    (await isWorkerFolder(config.dataDir))
  )
    throw new UsageError(
      `${config.dataDir} belongs to a worker: run this where the control plane is, or set DATABASE_URL`,
    )
  await withOperator(call, (deps) => act(deps, call))
}

async function printToken(deps: OperatorDeps, call: Call): Promise<void> {
  const name = call.texts['name'] ?? null
  const lifeMs = readDuration(call, 'expires-in') ?? DEFAULT_TOKEN_LIFETIME_MS
  const { token, ...made } = await createJoinToken(deps, {
    name,
    lifeMs,
    bounds: await readBoundsFlags(deps, call),
    pin: await readPin(deps, call),
  })
  if (call.switches.has('json')) printJson({ ...made, token })
  else process.stdout.write(`${token}\n`)
}

/** The pin for a token: the fingerprint of the installation's own certificate, unless the servers use another one. */
async function readPin({ db }: OperatorDeps, { config, switches }: Call): Promise<string | null> {
  if (switches.has('unpinned') || config.tlsCert !== null || config.insecure) return null
  const { dataDir, secretKey } = config
  const sealingKey =
    secretKey === null
      ? (await openDataFolder(dataDir, systemRandom, null)).sealingKey
      : Buffer.from(secretKey, 'base64')
  await requireSameSealingKey(db, keyFingerprint(sealingKey)) // another key would pin what no server has
  return ownFingerprint(sealingKey)
}

async function list(deps: OperatorDeps, call: Call): Promise<void> {
  const found = await Array.fromAsync(listWorkers(deps))
  if (call.switches.has('json')) return printJson(found)
  const rows = found.map((one) => [
    one.name,
    one.id,
    formatState(one),
    one.driver,
    one.isolation,
    `${String(one.used_vcpus)}/${String(one.vcpus)}`,
    `${String(one.used_memory_mib)}/${String(one.memory_mib)}`,
    `${String(one.used_disk_mib)}/${String(one.disk_mib ?? '-')}`,
    String(one.runs),
    one.last_report_at?.toISOString() ?? null,
    one.refused_claims,
  ])
  printTable(
    [
      'NAME',
      'ID',
      'STATE',
      'DRIVER',
      'ISOLATION',
      'VCPUS',
      'MEMORY MIB',
      'DISK MIB',
      'RUNS',
      'LAST REPORT',
      'REFUSED CLAIMS',
    ],
    rows,
  )
}

function formatState({ state, last_report_at, drain_deadline_at, removed_at }: FleetWorker): string {
  if (state === 'silent') return `silent since ${last_report_at?.toISOString() ?? 'it joined'}`
  if (state === 'removed') return `removed at ${removed_at?.toISOString() ?? '-'}`
  if (state === 'draining' && drain_deadline_at !== null) return `draining until ${drain_deadline_at.toISOString()}`
  return state
}

const DRAIN_POLL_MS = 1_000

async function drain(deps: OperatorDeps, call: Call): Promise<void> {
  const [name = ''] = call.args
  const withinMs = readDuration(call, 'deadline')
  const deadline = await drainWorker(deps, name, withinMs)
  const until = deadline === null ? 'to their end' : `until ${deadline.toISOString()}, when they are asked to stop`
  process.stdout.write(`${name} gets no new runs; its runs continue ${until}\n`)
  if (!call.switches.has('wait')) return
  for (let printed = -1; ;) {
    const { runs } = await readWorker(deps, name)
    if (runs !== printed) process.stdout.write(`${String(runs)} runs\n`)
    printed = runs
    if (runs === 0) return
    await deps.clock.sleep(DRAIN_POLL_MS)
  }
}

async function resume(deps: OperatorDeps, { args: [name = ''] }: Call): Promise<void> {
  await resumeWorker(deps, name)
  process.stdout.write(`${name} gets runs again\n`)
}

async function remove(deps: OperatorDeps, { args: [name = ''], switches }: Call): Promise<void> {
  const removal = await removeWorker(deps, name, switches.has('force') ? 'force' : 'unused')
  process.stdout.write(`${name} is removed\n`)
  if (removal.runs + removal.sandboxes + removal.volumes === 0) return
  process.stdout.write(
    `it had: ${formatHoldings(removal)}\n` +
      `its runs are marked lost within ${String(WORKER_LEASE_MS / 1000)} s; its sandboxes and volumes then start again empty\n`,
  )
}

function readDuration({ texts }: Call, flag: 'expires-in' | 'deadline'): number | null {
  const text = texts[flag]
  if (text === undefined) return null
  const ms = parseDurationMs(text)
  if (ms === null) throw new UsageError(`--${flag} takes ${DURATION_RULE}`)
  return ms
}
