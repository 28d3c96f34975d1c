import { Option, type Command } from 'commander'
import { listAllSandboxes, type ListedSandbox } from '../../../control/sandboxes/list-all-sandboxes.ts'
import type { OrgId } from '../../../domain/ids.ts'
import { isActive, SANDBOX_STATUSES } from '../../../domain/sandboxes/lifecycle.ts'
import { interruptibleSleep } from '../../../lib/clock.ts'
import { measureUse, type MeasuredUse } from '../../../worker/drivers/oci/cgroups/measure-use.ts'
import { runs, type Call } from '../../command.ts'
import { formatDuration, formatMib } from '../format.ts'
import { addOperatorSettings, withOperator, type OperatorDeps } from '../operator.ts'
import { write } from '../output.ts'
import { addOrgFilter, readCount, readOrgFilter } from './sandbox-argument.ts'
import { makeTableFormat, terminalWidth, type Row } from '../table.ts'
import { untilEnd } from './until-end.ts'

const HEADINGS = ['ORG', 'NAME', 'SLUG', 'STATUS', 'WORKER', 'UP', 'CPU', 'MEMORY', 'PROCESSES']
const REFRESH_MS = 2_000
/** How long the processor time is measured for one table. */
const ONCE_MS = 1_000
/** The most sandboxes that are sorted in memory: the newest. */
const MAX_SANDBOXES = 10_000

const HELP = `
CPU and MEMORY show what a sandbox uses of what it has. Containers on this machine are measured. Of microVMs, and of sandboxes on
other machines, only what they have is known here, shown after "-".`

/** Defines `sandyard top`, which shows what sandboxes use. */
export function defineTop(top: Command): void {
  addOperatorSettings(top)
  addOrgFilter(top)
    .option('--once', 'print one table and end; always so in a pipe')
    .addOption(new Option('--sort <column>', 'what to sort by; cpu unless given').choices(Object.keys(SORTS)))
    .option('--limit <count>', 'at most this many, the first by the order')
    .option('--json', 'print one JSON object a line, once')
    .addHelpText('after', HELP)
  runs(top, (call) => untilEnd((signal) => withOperator(call, (deps) => show(deps, call, signal))))
}

/** A sandbox with what it uses. Null: not measured. */
type TopSandbox = ListedSandbox & {
  /** How many vCPUs it used on average. */
  readonly used_vcpus: number | null
  readonly used_memory_mib: number | null
  readonly processes: number | null
}

const SORTS: Readonly<Record<string, (sandbox: TopSandbox) => number>> = {
  cpu: ({ used_vcpus }) => used_vcpus ?? -1,
  memory: ({ used_memory_mib }) => used_memory_mib ?? -1,
}

async function show(deps: OperatorDeps, call: Call, signal: AbortSignal): Promise<void> {
  const org_id = await readOrgFilter(deps, call)
  const limit = readCount(call, 'limit', MAX_SANDBOXES) ?? MAX_SANDBOXES
  const sort = SORTS[call.texts['sort'] ?? 'cpu']
  const isJson = call.switches.has('json')
  const isOnce = isJson || call.switches.has('once') || !process.stdout.isTTY
  for (let before = await sample(deps); !signal.aborted;) {
    await interruptibleSleep(deps.clock, isOnce ? ONCE_MS : REFRESH_MS, signal)
    const after = await sample(deps)
    const all = (await listActive(deps, org_id)).map((sandbox) => measure(sandbox, before, after))
    const sorted = sort === undefined ? all : all.toSorted((a, b) => sort(b) - sort(a))
    const first = sorted.slice(0, limit)
    if (isJson) return write(first.map((sandbox) => `${JSON.stringify(sandbox)}\n`).join(''))
    if (isOnce) return write(formatTable(first, deps.clock.now(), null))
    await write(`${CLEAR_SCREEN}${formatTotals(all)}${formatTable(first, deps.clock.now(), process.stdout.rows)}`)
    before = after
  }
}

const CLEAR_SCREEN = '\x1b[H\x1b[2J'

type Sample = { readonly atMs: number; readonly uses: ReadonlyMap<string, MeasuredUse> }

async function sample({ clock }: Pick<OperatorDeps, 'clock'>): Promise<Sample> {
  return { uses: await measureUse(), atMs: clock.monotonicMs() }
}

async function listActive(deps: Pick<OperatorDeps, 'db'>, org_id: OrgId | null): Promise<readonly ListedSandbox[]> {
  const statuses = SANDBOX_STATUSES.filter(isActive)
  const pages = listAllSandboxes(deps, { org_id, worker_id: null, statuses, limit: MAX_SANDBOXES })
  return (await Array.fromAsync(pages)).flat()
}

const BYTES_PER_MIB = 1_048_576

function measure(sandbox: ListedSandbox, before: Sample, after: Sample): TopSandbox {
  const use = after.uses.get(sandbox.run_id ?? '')
  if (use === undefined) return { ...sandbox, used_vcpus: null, used_memory_mib: null, processes: null }
  const earlierNs = before.uses.get(sandbox.run_id ?? '')?.cpu_ns ?? 0 // a run that started meanwhile began with 0
  const elapsedNs = (after.atMs - before.atMs) * 1e6
  return {
    ...sandbox,
    used_vcpus: round(Math.max(0, use.cpu_ns - earlierNs) / elapsedNs),
    used_memory_mib: round(use.memory_bytes / BYTES_PER_MIB),
    processes: use.processes,
  }
}

function round(value: number): number {
  return Math.round(value * 100) / 100
}

/** The lines around the rows of a terminal: totals, an empty line, headings, and the cursor's line. */
const OTHER_LINES = 4

function formatTable(sandboxes: readonly TopSandbox[], now: Date, height: number | null): string {
  const shown = height === null ? sandboxes : sandboxes.slice(0, Math.max(1, height - OTHER_LINES))
  const rows = [HEADINGS, ...shown.map((sandbox) => toRow(sandbox, now))]
  return makeTableFormat(rows, terminalWidth())(rows)
}

function toRow(sandbox: TopSandbox, now: Date): Row {
  const { org, name, slug, status, worker, started_at, vcpus, memory_mib } = sandbox
  const { used_vcpus, used_memory_mib, processes } = sandbox
  const memory = used_memory_mib === null ? '-' : formatMib(Math.round(used_memory_mib))
  return [
    org,
    name,
    slug,
    status,
    worker,
    started_at === null ? null : formatDuration(Math.max(0, now.getTime() - started_at.getTime())),
    `${used_vcpus === null ? '-' : used_vcpus.toFixed(2)} of ${String(vcpus)}`,
    `${memory} of ${formatMib(memory_mib)}`,
    processes === null ? null : String(processes),
  ]
}

function formatTotals(all: readonly TopSandbox[]): string {
  const measured = all.filter(({ used_vcpus }) => used_vcpus !== null)
  const sum = (of: readonly TopSandbox[], value: (sandbox: TopSandbox) => number | null): number =>
    of.reduce((total, sandbox) => total + (value(sandbox) ?? 0), 0)
  return (
    `${String(all.length)} sandboxes have ${String(sum(all, ({ vcpus }) => vcpus))} vCPUs and ` +
    `${formatMib(sum(all, ({ memory_mib }) => memory_mib))}; ${String(measured.length)} containers here use ` +
    `${sum(measured, ({ used_vcpus }) => used_vcpus).toFixed(2)} vCPUs and ` +
    `${formatMib(Math.round(sum(measured, ({ used_memory_mib }) => used_memory_mib)))}\n\n`
  )
}
