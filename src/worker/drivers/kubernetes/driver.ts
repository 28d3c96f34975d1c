import { mkdir, readdir, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { asId, type RunId, type SandboxId } from '../../../domain/ids.ts'
import { repeat } from '../../../lib/turns/repeat.ts'
import { makeUuids } from '../../../lib/uuid.ts'
import { readBootId } from '../../processes/process-identity.ts'
import type { Driver } from '../driver.ts'
import { makePoolFiller, type PoolFiller } from '../shared/pool-filler.ts'
import { makeRunActivity, type RunActivity } from '../shared/run-activity.ts'
import { newRunRecord, openRunRecords } from '../shared/run-records.ts'
import { openRunSupervisor, type RunOperations } from '../shared/run-supervisor.ts'
import { openVolumes } from './claims/open-volumes.ts'
import { makeAgentLinks } from './link/agent-links.ts'
import type { KubernetesDriverInput, PodContext, PodRunRecord } from './context.ts'
import { LABELS, podNameOf, type Pod } from './pod.ts'
import { openPolicies } from './network/policies.ts'
import { namespacesOf, requireNamespaces } from './namespaces/record-namespaces.ts'
import { proveNetwork } from './network/prove-network.ts'
import { makeRunPolicies } from './network/run-policy.ts'
import { openNamespaces } from './namespaces/namespaces.ts'
import { makePodGuest } from './link/pod-guest.ts'
import { makePodLogs } from './pod-logs.ts'
import { derivePodPhase } from './pod-phase.ts'
import { makePodUsage } from './usage/pod-usage.ts'
import { openPods } from './pods.ts'
import { describeIsolation, readClusterFacts, reportOf } from './probe.ts'
import { deletePullSecret } from './pull-secret.ts'
import { readOwner } from './read-owner.ts'
import { podOf } from './run-pod.ts'
import { startPod } from './start.ts'
import { makeStartPace } from './link/start-pace.ts'
import { makeWarmPods } from './warm/warm-pods.ts'

/** How often the warm Pods are compared with the demand, which falls with time. */
const FILL_MS = 60_000
/** How long a close waits for Pods to be deleted. */
const CLOSE_MS = 5_000

/**
 * Opens the driver that runs each sandbox as a Pod. Adopts the runs whose records are in `dir`, and deletes Pods of this folder that
 * have no record: their starts were undone. Rejects with words if the cluster can't be used.
 */
export async function makeKubernetesDriver(input: KubernetesDriverInput): Promise<Driver> {
  const { dir, client, namespace, clock, log, logs } = input
  await using opened = new AsyncDisposableStack()
  const owner = await readOwner(input)
  let facts = await readClusterFacts(client, input)
  const namespaces = await openNamespaces({
    ...input,
    base: namespace,
    wanted: input.namespaceMode,
    idleDays: input.namespaceDays,
    capacity: facts.capacity,
    claims: input.claimSettings,
  })
  opened.defer(() => namespaces.close())
  const proof = await proveNetwork(input, { owner, mode: namespaces.mode })
  opened.defer(() => proof?.close())
  const records = await openRunRecords<PodRunRecord>(dir, 'ends')
  // Records of an earlier version have no namespace.
  for (const record of records.list()) if (!Object.hasOwn(record, 'namespace')) records.write({ ...record, namespace })
  requireNamespaces(records.list(), namespaces, namespace)
  const bootId = await readBootId()
  const stored = join(dir, 'sandboxes')
  await mkdir(stored, { recursive: true, mode: 0o700 })
  let onPodChange = (_pod: Pod): void => undefined
  const closing = new AbortController()
  const { signal } = closing
  const pods = openPods({
    ...input,
    path: namespaces.podsPath,
    owner,
    onChange: (pod) => onPodChange(pod),
    signal,
  })
  opened.defer(() => pods.close())
  await pods.ready
  const policies =
    proof === null
      ? null
      : openPolicies({ ...input, owner, pods, namespaces: namespacesOf(records.list(), namespaces, namespace) })
  opened.defer(() => policies?.close())
  const { helperImage, runtimeClass } = input
  const links = makeAgentLinks(input)
  opened.defer(() => links.close())
  const podLogs = makePodLogs({
    ...input,
    folderOf: (run) => records.folderOf(run),
    isRunning: (run) => pods.get(podNameOf(run))?.status?.phase === 'Running',
  })
  opened.defer(() => podLogs.close())
  const usage = makePodUsage({
    ...input,
    podOf: (name) => pods.get(name),
    ...(input.usagePollMs === undefined ? {} : { pollMs: input.usagePollMs }),
  })
  opened.defer(() => usage.close())
  const newPodName = (): string => podNameOf(makeUuids(clock, input.random).next())
  const isolation = describeIsolation(namespaces.description, { ...facts, network: input.network })
  const { hasOwnUsers } = facts
  const policyOf =
    proof === null ? null : makeRunPolicies({ ...input, owner, nodeAddresses: () => facts.nodeAddresses })
  const settings = { owner, helperImage, images: input.images, hasOwnUsers, runtimeClass, policyOf }
  const pace = makeStartPace(clock)
  const making = new AbortController()
  const warmPods = makeWarmPods({
    most: input.warm,
    settings,
    capacity: facts.capacity,
    images: input.images,
    client,
    pods,
    policies,
    links,
    pace,
    newName: newPodName,
    signal: making.signal,
    clock,
    log,
  })
  const volumes = await openVolumes({ ...input, pods, namespaces, settings, newPodName, signal })
  const context: PodContext = {
    ...input,
    settings,
    records,
    namespaces,
    proof,
    policies,
    pods,
    claims: volumes?.claims ?? null,
    links,
    pace,
    podLogs,
    usage,
    warmPods,
    isolation,
    level: facts.level,
  }

  const activity = makeRunActivity(clock, () => supervisor.checkSoon())
  opened.defer(() => activity.close())
  const abortWaits = (): void => closing.abort(new Error('the driver is closed'))
  opened.defer(abortWaits)
  const logLeft = (error: unknown): void => log.warn({ error }, 'Pods are left for the next worker to delete')
  opened.defer(() => warmPods.removeAll().catch(logLeft))
  opened.defer(() => volumes?.close().catch(logLeft))
  const filler = makePoolFiller([warmPods], { clock, log })
  opened.defer(() => filler.close())
  const filling = repeat(() => filler.fill(), { pauseMs: FILL_MS, clock, onFailure: () => undefined })
  opened.defer(() => filling.close())
  opened.defer(() => {
    making.abort(new Error('the driver is closing'))
  })
  const operations = makeRunOperations(context, { activity, bootId, stored, filler, closed: signal })
  const supervisor = await openRunSupervisor({ ...context, operations })
  opened.defer(() => supervisor.close())
  // Starts in flight are undone, but a node that doesn't answer delays the close no longer than this.
  opened.defer(() => void setTimeout(abortWaits, CLOSE_MS).unref())
  const deleting = new Set<string>()
  const isKept = (name: string): boolean => warmPods.owns(name) || volumes?.ownsPod(name) === true
  /** Deletes a Pod without a record. The create of a start that was undone may have come through late. */
  const deleteOrphan = async (pod: Pod): Promise<void> => {
    const { [LABELS.run]: run = '', [LABELS.owner]: of } = pod.metadata.labels ?? {}
    if (of !== owner) return
    const record = records.read(asId<RunId>(run))
    const isOfRun = record !== null && !record.is_released && podOf(record).name === pod.metadata.name
    if (deleting.has(pod.metadata.uid) || isOfRun || isKept(pod.metadata.name)) return
    deleting.add(pod.metadata.uid)
    try {
      await pods.delete(pod.metadata, pod.metadata.uid, 0)
      pods.forget(pod.metadata.name)
    } catch (error) {
      if (!closing.signal.aborted)
        log.warn({ error, pod: pod.metadata.name }, 'a Pod without a run could not be deleted')
    } finally {
      deleting.delete(pod.metadata.uid)
    }
  }
  onPodChange = (pod) => {
    supervisor.checkSoon()
    if (pods.get(pod.metadata.name) !== undefined && pod.metadata.deletionTimestamp === undefined)
      void deleteOrphan(pod)
  }
  for (const pod of pods.all()) void deleteOrphan(pod)

  const parts = opened.move()
  return {
    name: 'kubernetes',
    async probe() {
      facts = await readClusterFacts(client, input)
      return reportOf(facts, { ...input, isolation, hasClaims: volumes !== null, isProved: proof?.isProved === true })
    },
    list: () => supervisor.list(),
    listStored: async () => (await readdir(stored)).map((name) => asId<SandboxId>(name)),
    start: async (desired, signal) => supervisor.start((await input.images?.resolve(desired)) ?? desired, signal),
    stop: (run, graceMs, outcome) => supervisor.stop(run, graceMs, outcome),
    remove: (run) => supervisor.remove(run),
    async discard(sandbox) {
      supervisor.assertNoRunOf(sandbox)
      await rm(join(stored, sandbox), { force: true })
    },
    measureDisks: () => Promise.resolve([]),
    pools: () => [{ name: 'warm_sandboxes', ready: warmPods.pooledCount, free: null }],
    warmStarts: () => warmPods.starts,
    openChannel(run) {
      const record = records.read(run)
      const phase = record === null ? null : phaseOf(context, record, false).phase
      if (record === null || phase !== 'running') return Promise.reject(new Error(`run ${run} is not running`))
      const { sandbox_id: sandbox, org_id: org } = record
      const guest = makePodGuest({
        sandbox,
        org,
        sessions: input.sessions,
        link: () => links.of(podOf(record), closing.signal),
        ...(input.tools === undefined ? {} : { tools: input.tools }),
      })
      const use = { touch: () => activity.touch(run), hold: () => activity.hold(run) }
      return Promise.resolve(input.openGuestChannel({ guest, org }, use, logs.writerOf(sandbox)))
    },
    watch: (onChange) => supervisor.watch(onChange),
    ...(volumes === null ? {} : { volumes: volumes.claims }),
    close: () => parts.disposeAsync(),
  }
}

function phaseOf({ pods }: Pick<PodContext, 'pods'>, record: PodRunRecord, isBeingStarted: boolean) {
  const { name } = podOf(record)
  return derivePodPhase(record, { isBeingStarted, pod: pods.get(name), last: pods.lastOf(name) })
}

type OperationDeps = {
  /** Aborts when the driver is closed. */
  readonly closed: AbortSignal
  readonly activity: RunActivity
  readonly bootId: string
  /** The folder with a file for each sandbox whose log is here. */
  readonly stored: string
  readonly filler: PoolFiller
}

function makeRunOperations(
  context: PodContext,
  { activity, bootId, stored, filler, closed }: OperationDeps,
): RunOperations<PodRunRecord> {
  const { pods, namespaces, links, podLogs, usage, warmPods } = context
  return {
    newRecord({ spec, ...desired }) {
      const { idle_timeout_secs } = spec.lifecycle
      const namespace = namespaces.nameOf(desired.org_id)
      const warm = warmPods.take({ ...desired, spec }, namespace)
      return Promise.resolve({
        ...newRunRecord({ ...desired, spec }, bootId),
        namespace,
        ...(warm === null ? {} : { pod_name: warm.name }),
        idle_timeout_secs,
        has_workload: spec.runtime.cmd !== null,
        has_pull_secret: desired.registry_auth !== null,
      })
    },
    async start(desired, record, attempt) {
      await warmPods.during(() => startPod(context, desired, { record, ...attempt }))
      await writeFile(join(stored, desired.sandbox_id), '', { mode: 0o600 })
      filler.fillLater()
    },
    observe: (record, isBeingStarted) => Promise.resolve(phaseOf(context, record, isBeingStarted)),
    isIdle({ run_id, idle_timeout_secs }) {
      if (idle_timeout_secs === null) return false
      activity.track(run_id, idle_timeout_secs)
      return activity.isIdle(run_id)
    },
    async stopProcesses(record, graceMs) {
      await deletePodOf(context, record, graceMs)
    },
    readLastOutput: ({ run_id }) => podLogs.finish(run_id),
    async release(record) {
      const pod = podOf(record)
      const { name } = pod
      links.drop(name)
      await deletePodOf(context, record, 0)
      pods.forget(name)
      if (record.has_pull_secret === true) await deletePullSecret(context, pod, closed)
      filler.fillLater()
    },
    openMeter: (record) => usage.openMeter(podOf(record).name),
    resumeOutput(record) {
      if (record.has_workload) podLogs.begin(record)
    },
    forget(run) {
      activity.forget(run)
    },
  }
}

/** Deletes the Pod of a run, unless the run only meant to take it and another one has it. */
async function deletePodOf({ pods }: PodContext, record: PodRunRecord, graceMs: number): Promise<void> {
  const pod = podOf(record)
  const of = pods.get(pod.name)?.metadata.labels?.[LABELS.run]
  if (record.started === null && of !== undefined && of !== record.run_id) return
  await pods.delete(pod, record.started?.pod_uid ?? null, graceMs)
}
