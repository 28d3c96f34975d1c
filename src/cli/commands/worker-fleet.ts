import { existsSync } from 'node:fs'
import { join } from 'node:path'
import {
  drainWorker,
  formatHoldings,
  listWorkers,
  readWorker,
  removeWorker,
  resumeWorker,
  type FleetWorker,
} from '../../control/workers/fleet.ts'
import { createWorkerToken, DEFAULT_TOKEN_LIFETIME_MS } from '../../control/workers/worker-tokens.ts'
import { DURATION_RULE, parseDurationMs } from '../../domain/duration.ts'
import { WORKER_LEASE_MS } from '../../domain/workers/lease.ts'
import { openOperatorDeps, type OperatorDeps } from './borrow-control.ts'
import { UsageError, type Call } from './command.ts'
import { isWorkerFolder } from '../worker/worker-identity.ts'

/** What operators do with workers, where the database is. */
export const FLEET_COMMANDS: Readonly<Record<string, (call: Call, args: readonly string[]) => Promise<number>>> = {
  token: (call, args) => withFleet(call, noName(args), makeToken),
  list: (call, args) => withFleet(call, noName(args), list),
  drain: (call, args) => withFleet(call, oneName(args), drain),
  resume: (call, args) => withFleet(call, oneName(args), resume),
  remove: (call, args) => withFleet(call, oneName(args), remove),
}

type Act = (control: OperatorDeps, call: Call, name: string) => Promise<void>

async function withFleet(call: Call, name: string, act: Act): Promise<number> {
  const { config } = call
  // Otherwise an empty database would be made here, and asked.
  if (
    config.databaseUrl === null &&
    !existsSync(join(config.dataDir, 'database')) &&
    (await isWorkerFolder(config.dataDir))
  )
    throw new UsageError(`${config.dataDir} is a worker's: run this where the control plane is, or set DATABASE_URL`)
  await using control = await openOperatorDeps(config)
  await act(control, call, name)
  return 0
}

function noName(args: readonly string[]): string {
  if (args.length > 0) throw new UsageError(`this takes no name: ${args.join(' ')}`)
  return ''
}

function oneName([name, ...rest]: readonly string[]): string {
  if (name === undefined || rest.length > 0) throw new UsageError('this takes the name of one worker')
  return name
}

async function makeToken(control: OperatorDeps, { texts, switches }: Call): Promise<void> {
  const name = texts['name'] ?? null
  const lifeMs = durationOf(texts, 'expires-in') ?? DEFAULT_TOKEN_LIFETIME_MS
  const { token, ...made } = await createWorkerToken(control, { name, lifeMs })
  process.stdout.write(switches.has('json') ? `${JSON.stringify({ ...made, token }, null, 2)}\n` : `${token}\n`)
}

async function list(control: OperatorDeps, { switches }: Call): Promise<void> {
  const found = await Array.fromAsync(listWorkers(control))
  if (switches.has('json')) {
    process.stdout.write(`${JSON.stringify(found, null, 2)}\n`)
    return
  }
  const headings = ['NAME', 'ID', 'STATE', 'DRIVER', 'VCPUS', 'MEMORY MIB', 'RUNS', 'LAST REPORT']
  const lines = found.map((one) => [
    one.name,
    one.id,
    formatState(one),
    one.driver ?? '-',
    `${String(one.used_vcpus)}/${String(one.vcpus)}`,
    `${String(one.used_memory_mib)}/${String(one.memory_mib)}`,
    String(one.runs),
    one.last_report_at?.toISOString() ?? '-',
  ])
  process.stdout.write(`${[headings, ...lines].map((line) => line.join('\t')).join('\n')}\n`)
}

function formatState({ state, last_report_at, drain_deadline_at, removed_at }: FleetWorker): string {
  if (state === 'silent') return `silent since ${last_report_at?.toISOString() ?? 'it joined'}`
  if (state === 'removed') return `removed at ${removed_at?.toISOString() ?? '-'}`
  if (state === 'draining' && drain_deadline_at !== null) return `draining until ${drain_deadline_at.toISOString()}`
  return state
}

const WAIT_STEP_MS = 1_000

async function drain(control: OperatorDeps, { texts, switches }: Call, name: string): Promise<void> {
  const withinMs = durationOf(texts, 'deadline')
  const deadline = withinMs === null ? null : new Date(control.clock.now().getTime() + withinMs)
  await drainWorker(control, name, deadline)
  const until = deadline === null ? 'to its end' : `until ${deadline.toISOString()}, and is asked to stop then`
  process.stdout.write(`${name} gets no new runs; what runs goes on ${until}\n`)
  if (!switches.has('wait')) return
  for (let told = -1; ;) {
    const { runs } = await readWorker(control, name)
    if (runs !== told) process.stdout.write(`${String(runs)} runs\n`)
    told = runs
    if (runs === 0) return
    await control.clock.sleep(WAIT_STEP_MS)
  }
}

async function resume(control: OperatorDeps, _call: Call, name: string): Promise<void> {
  await resumeWorker(control, name)
  process.stdout.write(`${name} gets runs again\n`)
}

async function remove(control: OperatorDeps, { switches }: Call, name: string): Promise<void> {
  const isForced = switches.has('force')
  const removal = await removeWorker(control, name, isForced ? 'force' : 'unused')
  process.stdout.write(`${name} is removed\n`)
  if (removal.runs + removal.sandboxes + removal.volumes === 0) return
  process.stdout.write(
    `given up with it: ${formatHoldings(removal)}\n` +
      `within ${String(WORKER_LEASE_MS / 1000)} s, once it can run nothing more, its runs are called lost; then what lay there begins anew, empty\n`,
  )
}

function durationOf(texts: Call['texts'], flag: string): number | null {
  const seen = texts[flag]
  if (seen === undefined) return null
  const ms = parseDurationMs(seen)
  if (ms === null) throw new UsageError(`--${flag} takes ${DURATION_RULE}`)
  return ms
}
