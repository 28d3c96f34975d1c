import type { Command } from 'commander'
import { DEFAULT_LOG_SOURCES } from '../../../contract/streams/operations.ts'
import type { SandboxCandidate } from '../../../control/sandboxes/find-sandbox.ts'
import { LOG_FOLLOW_MAX_SECS, LOG_TAIL_MAX } from '../../../domain/requests/request-bounds.ts'
import { parseServerEvents } from '../../../lib/streams/server-events.ts'
import { escapeControls } from '../../../lib/terminal-text.ts'
import { runs, type Call } from '../../command.ts'
import { withReadKey } from './operator-key.ts'
import { addOperatorSettings, withOperator, type OperatorDeps } from '../operator.ts'
import { write } from '../output.ts'
import { describeRefusal, findPublicApi, type PublicApi } from './public-api.ts'
import { addOrgFilter, readCount, readSandboxArgument, readSince, SANDBOX_HELP } from './sandbox-argument.ts'
import { untilEnd } from './until-end.ts'

const HELP = `${SANDBOX_HELP}
The log is read from the worker of the latest run by a running server. For that, the command creates a key of the organization
that may only read, and revokes it at the end.`

/** Defines `sandyard logs`, which prints the log of a sandbox. */
export function defineLogs(logs: Command): void {
  addOperatorSettings(logs.argument('<sandbox>', 'the sandbox'))
  addOrgFilter(logs)
    .option('--follow', 'go on with new lines until the run ends')
    .option('--tail <count>', 'only this many of the latest lines')
    .option('--since <time>', 'from when on: an instant, a day, or a duration such as 90m')
    .option('--system', 'also the messages of the worker, such as pulls and kills for memory')
    .option('--timestamps', 'print the time of each line')
    .option('--url <url>', 'the server to ask; one of those on the database unless given')
    .option('--json', 'print one JSON object a line')
    .addHelpText('after', HELP)
  runs(logs, (call) => untilEnd((signal) => withOperator(call, (deps) => print(deps, call, signal))))
}

async function print(deps: OperatorDeps, call: Call, signal: AbortSignal): Promise<void> {
  const sandbox = await readSandboxArgument(deps, call)
  const api = await findPublicApi(deps, call)
  const query = readQuery(deps, call)
  const isFollowed = call.switches.has('follow')
  const lifeMs = isFollowed ? LOG_FOLLOW_MAX_SECS * 1000 : READ_KEY_MS
  const key = { org_id: sandbox.org_id, name: 'sandyard logs', lifeMs }
  const printLine = printerOf(call)
  for (let cursor: string | null = null; !signal.aborted;) {
    const from: string | null = cursor
    const read: Read = await withReadKey(deps, key, (secret) =>
      printStream({ api, sandbox, query, key: secret, cursor: from, signal, printLine }),
    )
    if (read.hasEnded || (read.cursor === cursor && !isFollowed)) return
    cursor = read.cursor
  }
}

/** How long the key of a log that is not followed is valid. A log that takes longer goes on with another key. */
const READ_KEY_MS = 60_000

function readQuery(deps: OperatorDeps, call: Call): URLSearchParams {
  const sources = [...DEFAULT_LOG_SOURCES, ...(call.switches.has('system') ? ['system'] : [])].join(',')
  const query = new URLSearchParams({ sources, follow: 'false' })
  if (call.switches.has('follow')) {
    query.set('follow', 'true')
    query.set('follow_timeout', String(LOG_FOLLOW_MAX_SECS))
  }
  const tail = readCount(call, 'tail', LOG_TAIL_MAX)
  if (tail !== null) query.set('tail', String(tail))
  const since = readSince(call, deps.clock.now())
  if (since !== null) query.set('since', since.toISOString())
  return query
}

type LogLine = { readonly source: string; readonly ts: string; readonly text: string }
type Read = { readonly hasEnded: boolean; readonly cursor: string | null }

type Stream = {
  readonly api: PublicApi
  readonly sandbox: SandboxCandidate
  readonly query: URLSearchParams
  readonly key: string
  /** The last event that was printed. */
  readonly cursor: string | null
  readonly signal: AbortSignal
  readonly printLine: (line: LogLine) => Promise<void>
}

async function printStream({ api, sandbox, query, key, cursor: from, signal, printLine }: Stream): Promise<Read> {
  const resumed = from === null ? {} : { 'last-event-id': from }
  const headers = { authorization: `Bearer ${key}`, accept: 'text/event-stream', ...resumed }
  const reply = await api.get(`/v1/sandboxes/${sandbox.id}/logs?${query.toString()}`, { headers, signal })
  if (!reply.ok) throw new Error(`the server refused: ${describeRefusal(reply.status, await reply.text())}`)
  let cursor = from
  for await (const { id, type, data } of parseServerEvents(reply.body ?? new ReadableStream<Uint8Array>())) {
    if (type === 'end') return { hasEnded: true, cursor }
    if (type !== 'log') continue
    await printLine(JSON.parse(data))
    cursor = id
  }
  return { hasEnded: false, cursor }
}

function printerOf({ switches }: Call): (line: LogLine) => Promise<void> {
  if (switches.has('json')) return (line) => write(`${JSON.stringify(line)}\n`)
  const show = process.stdout.isTTY ? escapeLine : (text: string) => text
  return ({ source, ts, text }) => {
    const time = switches.has('timestamps') ? `${ts} ` : ''
    return write(`${time}${source === 'system' ? '[sandyard] ' : ''}${show(text)}`)
  }
}

/** Escapes what could take over the operator's terminal, and keeps tabs and the end of the line. */
function escapeLine(text: string): string {
  const line = text.replace(/\r?\n$/, '')
  return `${line.split('\t').map(escapeControls).join('\t')}${line === text ? '' : '\n'}`
}
