import type { Command } from 'commander'
import { explainSandbox, type SandboxExplanation } from '../../../control/workers/explain-sandbox.ts'
import { describeActor, describeFacts } from '../../../domain/events/describe-event.ts'
import { describeOutcome } from '../../../domain/sandboxes/describe-outcome.ts'
import { escapeControls } from '../../../lib/terminal-text.ts'
import { runs, type Call } from '../../command.ts'
import { formatInstant, formatTime } from '../format.ts'
import { addOperatorSettings, withOperator, type OperatorDeps } from '../operator.ts'
import { printJson, write } from '../output.ts'
import { addOrgFilter, readSandboxArgument, SANDBOX_HELP } from './sandbox-argument.ts'

/** Defines `sandyard why`, which explains the state of a sandbox. */
export function defineWhy(why: Command): void {
  addOperatorSettings(why.argument('<sandbox>', 'the sandbox'))
  addOrgFilter(why).option('--json', 'print JSON').addHelpText('after', SANDBOX_HELP)
  runs(why, (call) => withOperator(call, (deps) => explain(deps, call)))
}

async function explain(deps: OperatorDeps, call: Call): Promise<void> {
  const { id } = await readSandboxArgument(deps, call)
  const { defaultRegistry, requireIsolation } = call.config
  const explanation = await explainSandbox({ ...deps, settings: { defaultRegistry, requireIsolation } }, id)
  if (call.switches.has('json')) printJson(explanation)
  else await write(formatExplanation(explanation, deps.clock.now()))
}

/** How many events and workers the text shows. JSON has more. */
const EVENTS_SHOWN = 8
const WORKERS_SHOWN = 10

function formatExplanation(explanation: SandboxExplanation, now: Date): string {
  const { sandbox, state, reasons, advice, since, runs, events, workers } = explanation
  const { name, slug, org, image } = sandbox
  const title = name === slug ? `'${name}'` : `'${name}' (${slug})`
  const by = since === null ? null : `since ${formatInstant(since.timestamp, now)}, by ${describeActor(since.actor)}`
  const failed = runs.flatMap((run) => {
    const { outcome, ended_at, worker } = run
    if (outcome === null || ended_at === null) return []
    const where = worker === null ? '' : ` on the worker '${worker}'`
    return [`the run of ${formatTime(run.opened_at)}${where}: ${describeOutcome(outcome)}`]
  })
  const tried = events
    .slice(0, EVENTS_SHOWN)
    .toReversed()
    .map(({ timestamp, event_type, actor, payload }) =>
      `${formatTime(timestamp)}  ${event_type}  ${describeActor(actor)}  ${describeFacts(payload)}`.trimEnd(),
    )
  const shownWorkers = workers
    .slice(0, WORKERS_SHOWN)
    .map(({ worker, lacks }) => `${worker}: ${lacks.length === 0 ? 'has the capacity by now' : lacks.join('; ')}`)
  const more = workers.length > WORKERS_SHOWN ? [`and ${String(workers.length - WORKERS_SHOWN)} more`] : []
  const paragraphs = [
    [
      `The sandbox ${title} of the organization '${org}', with the image ${image}, ${state}.`,
      ...(by === null ? [] : [by]),
    ],
    list('Why:', reasons),
    list('Workers:', [...shownWorkers, ...more]),
    list('Earlier runs, the latest first:', failed.slice(0, EVENTS_SHOWN)),
    list('What happened:', tried),
    list('What would help:', advice),
  ]
  return paragraphs
    .filter((lines) => lines.length > 0)
    .map((lines) => `${lines.map(escapeControls).join('\n')}\n`)
    .join('\n')
}

function list(title: string, items: readonly string[]): readonly string[] {
  return items.length === 0 ? [] : [title, ...items.map((item) => `  ${item}`)]
}
