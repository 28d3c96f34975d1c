import type { Command } from 'commander'
import { inspectSandbox, type RunDetails, type SandboxDetails } from '../../../control/sandboxes/inspect-sandbox.ts'
import type { MountProjection } from '../../../domain/spec/project-spec.ts'
import { describeOutcome } from '../../../domain/sandboxes/describe-outcome.ts'
import { runs, type Call } from '../../command.ts'
import { formatDuration, formatInstant, formatMib, formatTime } from '../format.ts'
import { addOperatorSettings, withOperator, type OperatorDeps } from '../operator.ts'
import { printJson, write } from '../output.ts'
import { addOrgFilter, readSandboxArgument, SANDBOX_HELP } from './sandbox-argument.ts'
import { formatSections, type Section } from './sections.ts'

/** Defines `sandyard inspect`, which shows everything about a sandbox. */
export function defineInspect(inspect: Command): void {
  addOperatorSettings(inspect.argument('<sandbox>', 'the sandbox'))
  addOrgFilter(inspect)
    .option('--json', 'print JSON')
    .addHelpText('after', `${SANDBOX_HELP}\nValues of environment variables and scripts are not shown.`)
  runs(inspect, (call) => withOperator(call, (deps) => show(deps, call)))
}

async function show(deps: OperatorDeps, call: Call): Promise<void> {
  const { id } = await readSandboxArgument(deps, call)
  const details = await inspectSandbox(deps, id)
  if (call.switches.has('json')) printJson(details)
  else await write(formatSections(sectionsOf(details, deps.clock.now())))
}

function sectionsOf(details: SandboxDetails, now: Date): readonly Section[] {
  const { spec, volumes, usage } = details
  const at = (instant: Date | null): string | null => (instant === null ? null : formatInstant(instant, now))
  return [
    {
      title: 'SANDBOX',
      facts: [
        ['name', details.name],
        ['slug', details.slug],
        ['id', details.id],
        ['organization', details.org],
        ['status', `${details.status}${details.status_reason === null ? '' : ` (${details.status_reason})`}`],
        ['last failure', details.last_failure_message],
        ['created', at(details.created_at)],
        ['started', at(details.started_at)],
        ['stopped', at(details.stopped_at)],
        ['restarts', details.restart_at === null ? null : `at ${at(details.restart_at) ?? ''}`],
        ['deleted', at(details.deleted_at)],
        ['deleted at its end', details.ephemeral ? 'yes' : null],
      ],
    },
    {
      title: 'SPECIFICATION',
      facts: [
        ['image', spec.image],
        ['registry credential', details.registry_mode],
        ['vcpus', details.vcpus],
        ['memory', formatMib(details.memory_mib)],
        ['disk', details.disk_size_mib === null ? "the worker's default size" : formatMib(details.disk_size_mib)],
        ['disk is on', details.home_worker],
        ['isolation', details.isolation],
        ['needs', joined(details.abilities)],
        ['entrypoint', quoted(spec.runtime.entrypoint)],
        ['command', quoted(spec.runtime.cmd)],
        ['user', spec.runtime.user],
        ['working directory', spec.runtime.workdir],
        ['scripts', joined(Object.keys(spec.runtime.scripts))],
        ['idle timeout', seconds(spec.lifecycle.idle_timeout_secs)],
        ['maximum duration', seconds(spec.lifecycle.max_duration_secs)],
      ],
    },
    { title: 'ENVIRONMENT', facts: spec.env.map(({ key, value }) => [key, value]) },
    { title: 'LABELS', facts: Object.entries(spec.labels) },
    { title: 'NETWORK', facts: networkFacts(spec) },
    { title: 'MOUNTS', facts: spec.mounts.map((mount) => [mount.guest, describeMount(mount)]) },
    {
      title: 'VOLUMES',
      facts: volumes.map(({ id, name, status, used_bytes, capacity_gib, worker }) => [
        name ?? 'the default volume',
        [
          id,
          status,
          used_bytes === null ? null : `${formatMib(Math.ceil(used_bytes / 1_048_576))} used`,
          capacity_gib === null ? null : `of ${String(capacity_gib)} GiB`,
          worker === null ? null : `on ${worker}`,
        ]
          .filter((part) => part !== null)
          .join(', '),
      ]),
    },
    {
      title: 'USAGE OF THE STORED RUNS',
      facts: [
        ['runs', usage.runs],
        ['vCPU seconds', Math.round(usage.vcpu_seconds)],
        ['memory MiB seconds', Math.round(usage.memory_mib_seconds)],
      ],
    },
    {
      title: 'RUNS, THE LATEST FIRST',
      facts: details.runs.map((run) => [formatTime(run.opened_at), describeRun(run, now)]),
    },
  ]
}

function networkFacts({ network }: SandboxDetails['spec']): Section['facts'] {
  const { enabled, policy, max_connections, secrets = [] } = network
  return [
    ['network', enabled ? null : 'none'],
    ['policy', policy === null ? (enabled ? 'the default: DNS and public addresses' : null) : JSON.stringify(policy)],
    ['maximum connections', max_connections],
    ['secrets', joined(secrets.map(({ env_var }) => env_var))],
  ]
}

function describeMount(mount: MountProjection): string {
  const kinds = { Bind: 'of the default volume', Named: 'a volume', Tmpfs: 'memory', DiskImage: 'a disk image' }
  return `${kinds[mount.type]}${mount.options.readonly ? ', read-only' : ''}`
}

function describeRun(run: RunDetails, now: Date): string {
  const { worker, started_at, ended_at, stop_cause, outcome } = run
  const until = ended_at ?? now
  return [
    run.id,
    worker === null ? 'no worker' : `on ${worker}`,
    started_at === null ? 'never ran' : `ran ${formatDuration(until.getTime() - started_at.getTime())}`,
    stop_cause === null ? null : `asked to stop: ${stop_cause}`,
    outcome === null ? null : describeOutcome(outcome),
    ended_at === null ? 'open' : `ended ${formatTime(ended_at)}`,
  ]
    .filter((part) => part !== null)
    .join(', ')
}

function joined(texts: readonly string[]): string | null {
  return texts.length === 0 ? null : texts.join(', ')
}

function quoted(words: readonly string[] | null): string | null {
  return words === null ? null : JSON.stringify(words)
}

function seconds(secs: number | null): string | null {
  return secs === null ? null : formatDuration(secs * 1000)
}
