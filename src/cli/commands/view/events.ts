import { Option, type Command } from 'commander'
import { followEvents, latestEvents, type OperatorEvents } from '../../../control/events/follow-events.ts'
import type { EventRow } from '../../../control/events/read-events.ts'
import { listAllOrgs } from '../../../control/orgs/orgs.ts'
import { findSandbox } from '../../../control/sandboxes/find-sandbox.ts'
import { describeActor, describeFacts } from '../../../domain/events/describe-event.ts'
import { EVENT_CATEGORIES } from '../../../domain/events/event-types.ts'
import type { OrgId } from '../../../domain/ids.ts'
import { runs, type Call } from '../../command.ts'
import { formatTime } from '../format.ts'
import { addOperatorSettings, withOperator, type OperatorDeps } from '../operator.ts'
import { printJsonLines, write } from '../output.ts'
import { addOrgFilter, readCount, readOrgFilter, readSince, SANDBOX_HELP } from './sandbox-argument.ts'
import { makeTableFormat, terminalWidth, type Row } from '../table.ts'
import { untilEnd } from './until-end.ts'

const DEFAULT_LIMIT = 100
const MAX_LIMIT = 10_000
const HEADINGS = ['TIME', 'ORG', 'EVENT', 'ACTOR', 'FACTS']

/** Defines `sandyard events`, which shows the audit events of all organizations. */
export function defineEvents(events: Command): void {
  addOperatorSettings(events)
  addOrgFilter(events)
    .option('--sandbox <sandbox>', 'only events of this sandbox')
    .addOption(new Option('--category <category>', 'only this category').choices([...EVENT_CATEGORIES]))
    .option('--actor <actor>', 'only by this actor: the id of a key or a user, `operator`, or `sandyard`')
    .option('--since <time>', 'from when on: an instant, a day, or a duration such as 90m')
    .option('--limit <count>', `at most this many, the latest; ${String(DEFAULT_LIMIT)} unless given`)
    .option('--follow', 'go on with new events until interrupted')
    .option('--json', 'print one JSON object a line')
    .addHelpText('after', `\nThe latest events, the oldest first.${SANDBOX_HELP}`)
  runs(events, (call) => untilEnd((signal) => withOperator(call, (deps) => print(deps, call, signal))))
}

async function print(deps: OperatorDeps, call: Call, signal: AbortSignal): Promise<void> {
  const asked = await readFilter(deps, call)
  const limit = readCount(call, 'limit', MAX_LIMIT) ?? DEFAULT_LIMIT
  const found = await latestEvents(deps, asked, limit)
  const printPages = await makePrinter(deps, call, found)
  await printPages(asPages([found]))
  if (!call.switches.has('follow')) return
  await printPages(followEvents(deps, asked, { known: found, signal }))
}

async function* asPages<Item>(pages: readonly Item[]): AsyncGenerator<Item> {
  yield* pages
}

async function readFilter(deps: OperatorDeps, call: Call): Promise<OperatorEvents> {
  const { texts } = call
  const org_id = await readOrgFilter(deps, call)
  const sandbox = texts['sandbox'] === undefined ? null : await findSandbox(deps, texts['sandbox'], org_id)
  return {
    org_id: sandbox?.org_id ?? org_id,
    sandbox_id: sandbox?.id ?? null,
    event_type: null,
    category: EVENT_CATEGORIES.find((category) => category === texts['category']) ?? null,
    actor: texts['actor'] ?? null,
    since: readSince(call, deps.clock.now()),
    until: null,
  }
}

type PrintPages = (pages: AsyncIterable<readonly EventRow[]>) => Promise<void>

async function makePrinter(deps: OperatorDeps, call: Call, first: readonly EventRow[]): Promise<PrintPages> {
  if (call.switches.has('json')) return printJsonLines
  const slugs = new Map<OrgId, string>()
  const toRow = async (event: EventRow): Promise<Row> => {
    const org = slugs.get(event.org_id) ?? (await readSlugs(deps, slugs)).get(event.org_id) ?? event.org_id
    const { timestamp, event_type, actor, payload } = event
    return [formatTime(timestamp), org, event_type, describeActor(actor), describeFacts(payload)]
  }
  const format = makeTableFormat([HEADINGS, ...(await Promise.all(first.map(toRow)))], terminalWidth())
  await write(format([HEADINGS]))
  return async (pages) => {
    for await (const page of pages) await write(format(await Promise.all(page.map(toRow))))
  }
}

async function readSlugs(deps: OperatorDeps, slugs: Map<OrgId, string>): Promise<ReadonlyMap<OrgId, string>> {
  for await (const { id, slug } of listAllOrgs(deps)) slugs.set(id, slug)
  return slugs
}
