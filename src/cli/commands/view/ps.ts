import { Option, type Command } from 'commander'
import { listAllSandboxes, type ListedSandbox } from '../../../control/sandboxes/list-all-sandboxes.ts'
import { readWorker } from '../../../control/workers/fleet.ts'
import { INT32_MAX } from '../../../domain/requests/request-bounds.ts'
import { isActive, SANDBOX_STATUSES, type SandboxStatus } from '../../../domain/sandboxes/lifecycle.ts'
import { runs, type Call } from '../../command.ts'
import { formatDuration, formatMib } from '../format.ts'
import { addOperatorSettings, withOperator, type OperatorDeps } from '../operator.ts'
import { printJsonLines, printTablePages } from '../output.ts'
import { addOrgFilter, readCount, readOrgFilter } from './sandbox-argument.ts'
import type { Row } from '../table.ts'

const HEADINGS = ['ORG', 'NAME', 'SLUG', 'IMAGE', 'STATUS', 'WORKER', 'STARTED', 'VCPUS', 'MEMORY']

/** Defines `sandyard ps`, which lists the sandboxes of all organizations. */
export function definePs(ps: Command): void {
  addOperatorSettings(ps)
  addOrgFilter(ps)
    .option('--all', 'also those that are stopped, failed, or were never started')
    .addOption(new Option('--status <status>', 'only those with this status').choices([...SANDBOX_STATUSES]))
    .option('--worker <name>', 'only those on this worker; with --all, also those whose disk is there')
    .option('--limit <count>', 'at most this many, the newest')
    .option('--json', 'print one JSON object a line')
  runs(ps, (call) => withOperator(call, (deps) => list(deps, call)))
}

async function list(deps: OperatorDeps, call: Call): Promise<void> {
  const worker = call.texts['worker']
  const pages = listAllSandboxes(deps, {
    org_id: await readOrgFilter(deps, call),
    worker_id: worker === undefined ? null : (await readWorker(deps, worker)).id,
    statuses: readStatuses(call),
    limit: readCount(call, 'limit', INT32_MAX),
  })
  if (call.switches.has('json')) await printJsonLines(pages)
  else await printTablePages(HEADINGS, pages, (sandbox) => toRow(sandbox, deps.clock.now()))
}

function readStatuses({ texts, switches }: Call): readonly SandboxStatus[] | null {
  const asked = SANDBOX_STATUSES.filter((status) => status === texts['status'])
  if (asked.length > 0) return asked
  return switches.has('all') ? null : SANDBOX_STATUSES.filter(isActive)
}

function toRow(sandbox: ListedSandbox, now: Date): Row {
  const { org, name, slug, image, worker, started_at, vcpus, memory_mib } = sandbox
  const agoMs = started_at === null ? null : Math.max(0, now.getTime() - started_at.getTime())
  const started = agoMs === null ? null : `${formatDuration(agoMs)} ago`
  return [org, name, slug, image, formatStatus(sandbox), worker, started, String(vcpus), formatMib(memory_mib)]
}

function formatStatus({ status, status_reason, last_failure_message }: ListedSandbox): string {
  if (status_reason !== null) return `${status} (${status_reason.replaceAll('_', ' ')})`
  return status === 'failed' && last_failure_message !== null ? `${status} (${last_failure_message})` : status
}
