import { Option, type Command } from 'commander'
import type { Org } from '../../../control/orgs/orgs.ts'
import { interruptibleSleep } from '../../../lib/clock.ts'
import { UsageError, runs, type Call } from '../../command.ts'
import { formatDuration, formatMib } from '../format.ts'
import { addOperatorSettings, findOrg, readFirstOrg, withOperator, type OperatorDeps } from '../operator.ts'
import { write } from '../output.ts'
import { makeTableFormat, terminalWidth, type Row } from '../table.ts'
import { withReadKey } from './operator-key.ts'
import { findPublicApi, readJsonReply, type PublicApi } from './public-api.ts'
import { addOrgFilter, readCount } from './sandbox-argument.ts'
import { readKeys } from './read-keys.ts'
import { untilEnd } from './until-end.ts'

const REFRESH_MS = 2_000
/** The most sandboxes that the API returns, those that use the most processor time first. */
const MAX_SANDBOXES = 10_000
/** How long a key is valid. A table that is shown longer goes on with another key. */
const KEY_MS = 15 * 60_000
const KEY_USE_MS = 14 * 60_000

const HELP = `
CPU and MEMORY show what a sandbox uses of what it has; RECEIVED and SENT are bytes a second. "-" means that it isn't measured: it is
starting, turned sampling off, or its worker doesn't answer.

At a terminal, the keys of the line below the totals choose the order, and q ends.`

/** Defines `sandyard top`, which shows what sandboxes use. */
export function defineTop(top: Command): void {
  addOperatorSettings(top)
  addOrgFilter(top)
    .option('--url <url>', 'the server to ask; the first one that runs unless given')
    .option('--once', 'print one table and end; always so in a pipe')
    .addOption(new Option('--sort <column>', 'what to sort by; cpu unless given').choices(Object.keys(COLUMNS)))
    .option('--limit <count>', 'at most this many, the first by the order')
    .option('--json', 'print one JSON object a line, once')
    .addHelpText('after', HELP)
  runs(top, (call) => untilEnd((signal) => withOperator(call, (deps) => show(deps, call, signal))))
}

/** The reply of `read_installation_metrics`, as far as it is shown. */
type Use = {
  readonly running: number
  readonly measured: number
  readonly vcpus: number
  readonly used_vcpus: number
  readonly memory_bytes: number
  readonly used_memory_bytes: number
  readonly received_bytes_per_sec: number
  readonly sent_bytes_per_sec: number
  readonly silent_workers: readonly string[]
  readonly data: readonly UsedSandbox[]
}

type UsedSandbox = {
  readonly org: string
  readonly name: string
  readonly slug: string
  readonly worker: string
  readonly vcpus: number
  readonly memory_mib: number
  readonly started_at: string | null
  readonly latest: Latest | null
}

type Latest = {
  readonly covered_secs: number
  readonly used_vcpus: number
  readonly memory_bytes: number
  readonly processes: number | null
  readonly disk_used_bytes: number | null
  readonly received_bytes: number | null
  readonly sent_bytes: number | null
}

type Column = {
  /** The key that sorts by it. */
  readonly key: string
  readonly cell: (sandbox: UsedSandbox, now: Date) => string | null
  /** Numbers are sorted from the largest, texts from the first. */
  readonly rank: (sandbox: UsedSandbox) => number | string
}

/** The columns by the name that `--sort` takes. */
const COLUMNS: Readonly<Record<string, Column>> = {
  org: { key: 'o', cell: ({ org }) => org, rank: ({ org }) => org },
  name: { key: 'n', cell: ({ name }) => name, rank: ({ name }) => name },
  slug: { key: 's', cell: ({ slug }) => slug, rank: ({ slug }) => slug },
  worker: { key: 'w', cell: ({ worker }) => worker, rank: ({ worker }) => worker },
  up: {
    key: 'u',
    cell: ({ started_at }, now) =>
      started_at === null ? null : formatDuration(Math.max(0, now.getTime() - Date.parse(started_at))),
    rank: ({ started_at }) => (started_at === null ? -Infinity : -Date.parse(started_at)),
  },
  cpu: {
    key: 'c',
    cell: ({ vcpus, latest }) => `${latest?.used_vcpus.toFixed(2) ?? '-'} of ${String(vcpus)}`,
    rank: ({ latest }) => latest?.used_vcpus ?? -1,
  },
  memory: {
    key: 'm',
    cell: ({ memory_mib, latest }) => `${formatBytes(latest?.memory_bytes) ?? '-'} of ${formatMib(memory_mib)}`,
    rank: ({ latest }) => latest?.memory_bytes ?? -1,
  },
  disk: {
    key: 'd',
    cell: ({ latest }) => formatBytes(latest?.disk_used_bytes),
    rank: ({ latest }) => latest?.disk_used_bytes ?? -1,
  },
  received: {
    key: 'r',
    cell: ({ latest }) => formatBytes(perSecond(latest, latest?.received_bytes)),
    rank: ({ latest }) => perSecond(latest, latest?.received_bytes) ?? -1,
  },
  sent: {
    key: 't',
    cell: ({ latest }) => formatBytes(perSecond(latest, latest?.sent_bytes)),
    rank: ({ latest }) => perSecond(latest, latest?.sent_bytes) ?? -1,
  },
  processes: {
    key: 'p',
    cell: ({ latest }) => (latest === null || latest.processes === null ? null : String(latest.processes)),
    rank: ({ latest }) => latest?.processes ?? -1,
  },
}

async function show(deps: OperatorDeps, call: Call, ended: AbortSignal): Promise<void> {
  const org = call.texts['org'] === undefined ? null : await findOrg(deps.db, call.texts['org'])
  const limit = readCount(call, 'limit', MAX_SANDBOXES) ?? MAX_SANDBOXES
  const api = await findPublicApi(deps, call)
  const keyOf = org ?? (await readFirstOrg(deps.db))
  const isOnce = call.switches.has('json') || call.switches.has('once') || !process.stdout.isTTY
  const chosen = { sort: call.texts['sort'] ?? 'cpu', limit, org }
  if (isOnce) {
    const use = await withKey(deps, keyOf, (key) => readUse(api, key, ended))
    await write(call.switches.has('json') ? formatJson(use, chosen) : formatTable(use, chosen, deps.clock.now(), null))
    return
  }
  await showLive(deps, { api, keyOf, chosen }, ended)
}

/** What is shown: the order, how many, and of which organization. */
type Chosen = { readonly sort: string; readonly limit: number; readonly org: Pick<Org, 'slug'> | null }

type Live = { readonly api: PublicApi; readonly keyOf: Pick<Org, 'id'>; readonly chosen: Chosen }

async function showLive(deps: OperatorDeps, { api, keyOf, chosen: first }: Live, ended: AbortSignal): Promise<void> {
  let chosen = first
  const quit = new AbortController()
  const signal = AbortSignal.any([ended, quit.signal])
  let pause = new AbortController()
  using _keys = readKeys((key) => {
    if (key === 'q') quit.abort()
    const column = Object.entries(COLUMNS).find(([, one]) => one.key === key)
    if (column === undefined) return
    chosen = { ...chosen, sort: column[0] }
    pause.abort()
  })
  while (!signal.aborted) {
    await withKey(deps, keyOf, async (key) => {
      const untilMs = deps.clock.monotonicMs() + KEY_USE_MS
      while (!signal.aborted && deps.clock.monotonicMs() < untilMs) {
        const use = await readUse(api, key, signal)
        pause = new AbortController()
        await write(CLEAR_SCREEN + formatTotals(use) + formatTable(use, chosen, deps.clock.now(), process.stdout.rows))
        await interruptibleSleep(deps.clock, REFRESH_MS, signal, pause.signal)
      }
    })
  }
}

const CLEAR_SCREEN = '\x1b[H\x1b[2J'

function withKey<Result>(
  deps: OperatorDeps,
  { id }: Pick<Org, 'id'>,
  work: (key: string) => Promise<Result>,
): Promise<Result> {
  return withReadKey(deps, { org_id: id, name: 'sandyard top', lifeMs: KEY_MS, isOperator: true }, work)
}

async function readUse(api: PublicApi, key: string, signal: AbortSignal): Promise<Use> {
  const headers = { authorization: `Bearer ${key}` }
  const reply = await api.get(`/v1/installation/metrics?limit=${String(MAX_SANDBOXES)}`, { headers, signal })
  return (await readJsonReply(reply)) as Use
}

function choose({ data }: Use, { sort, limit, org }: Chosen): readonly UsedSandbox[] {
  const column = COLUMNS[sort]
  if (column === undefined) throw new UsageError(`--sort is "${sort}"; accepted: ${Object.keys(COLUMNS).join(', ')}`)
  return data
    .filter((sandbox) => org === null || sandbox.org === org.slug)
    .toSorted((a, b) => compare(column.rank(a), column.rank(b)))
    .slice(0, limit)
}

function compare(a: number | string, b: number | string): number {
  return typeof a === 'number' && typeof b === 'number' ? b - a : String(a).localeCompare(String(b))
}

function formatJson(use: Use, chosen: Chosen): string {
  return choose(use, chosen)
    .map((sandbox) => `${JSON.stringify(sandbox)}\n`)
    .join('')
}

/** The lines around the rows of a terminal: totals, keys, an empty line, headings, and the cursor's line. */
const OTHER_LINES = 5

function formatTable(use: Use, chosen: Chosen, now: Date, height: number | null): string {
  const sandboxes = choose(use, chosen)
  const shown = height === null ? sandboxes : sandboxes.slice(0, Math.max(1, height - OTHER_LINES))
  const columns = Object.values(COLUMNS)
  const headings: Row = Object.keys(COLUMNS).map((name) => name.toUpperCase())
  const rows = [headings, ...shown.map((sandbox) => columns.map(({ cell }) => cell(sandbox, now)))]
  return makeTableFormat(rows, terminalWidth())(rows)
}

function formatTotals(use: Use): string {
  const { running, measured, vcpus, used_vcpus, memory_bytes, used_memory_bytes, silent_workers } = use
  const silent = silent_workers.length === 0 ? '' : `; silent workers: ${silent_workers.join(', ')}`
  const keys = Object.entries(COLUMNS).map(([name, { key }]) => `${key} ${name}`)
  return (
    `${String(running)} sandboxes have ${String(vcpus)} vCPUs and ${formatBytes(memory_bytes) ?? '0 MiB'}; ` +
    `${String(measured)} measured ones use ${used_vcpus.toFixed(2)} vCPUs and ${formatBytes(used_memory_bytes) ?? '0 MiB'}, ` +
    `receive ${formatBytes(use.received_bytes_per_sec) ?? '0'} and send ${formatBytes(use.sent_bytes_per_sec) ?? '0'} a second` +
    `${silent}\n${keys.join(' · ')} · q quit\n\n`
  )
}

function perSecond(latest: Latest | null, bytes: number | null | undefined): number | null {
  return latest === null || latest.covered_secs === 0 || bytes === null || bytes === undefined
    ? null
    : bytes / latest.covered_secs
}

const BYTES_PER_KIB = 1_024

/** Formats bytes by KiB, MiB or GiB. */
function formatBytes(bytes: number | null | undefined): string | null {
  if (bytes === null || bytes === undefined) return null
  if (bytes < BYTES_PER_KIB * BYTES_PER_KIB) return `${String(Math.round(bytes / BYTES_PER_KIB))} KiB`
  return formatMib(Math.round(bytes / (BYTES_PER_KIB * BYTES_PER_KIB)))
}
