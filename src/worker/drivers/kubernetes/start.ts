import { TOOLS_FOLDER } from '../../../contract/workers/guest-tools.ts'
import type { DesiredRun } from '../../../contract/workers/worker-protocol.ts'
import { ISOLATION_LEVEL_FACT } from '../../../domain/isolation.ts'
import type { SandboxSpec } from '../../../domain/spec/spec.ts'
import { isApiError } from '../../kubernetes/api-error.ts'
import { LIFECYCLE_LINES, writeSystemLine } from '../../logs/lifecycle-lines.ts'
import { StartError } from '../../start-error.ts'
import type { StartAttempt } from '../shared/run-supervisor.ts'
import { AgentRefusal } from './link/agent-link.ts'
import type { PodContext, PodRunRecord } from './context.ts'
import { assertOnlyPod, claimPod } from './warm/claim-pod.ts'
import { createPullSecret, ownPullSecret, pullCredentialOf } from './pull-secret.ts'
import type { NetworkMode } from './network-mode.ts'
import { makePod } from './spec/pod-spec.ts'
import { applyPodPatches } from './link/pod-patches.ts'
import { makeNodeWait } from './node-wait.ts'
import { podOf } from './run-pod.ts'
import {
  describeWaiting,
  isOver,
  isUnschedulable,
  SANDBOX_CONTAINER,
  sandboxStatus,
  type ContainerStatus,
  type Pod,
  type PodName,
} from './pod.ts'
import { fillStatus } from './spec/fill-container.ts'
import { rulesStatus } from './network/rules-container.ts'
import { reachPod } from './link/reach-pod.ts'

/** How long a Pod may take until its sandbox accepts commands: a node must be found, and perhaps made, and images pulled. */
const START_LIMIT_MS = 600_000

/** Starts the Pod of a run and writes the run's record. Implements `RunOperations.start`. */
export async function startPod(
  context: PodContext,
  desired: DesiredRun,
  { record, signal, stopwatch }: StartAttempt & { readonly record: PodRunRecord },
): Promise<void> {
  const { records, podLogs, logs, proof } = context
  if (proof?.isProved === false)
    throw new StartError('host', `${NETWORK_LOST[context.network]}, so this worker starts no sandboxes`)
  const limit = AbortSignal.timeout(context.startLimitMs ?? START_LIMIT_MS)
  const either = AbortSignal.any([signal, limit])
  let own = record
  try {
    const acquired = await stopwatch.measure('runtime', acquirePod(context, desired, { record, signal: either }))
    const { uid, made } = acquired
    own = acquired.record
    const target = podOf(own)
    const reached = waitUntilReached(context, own, { uid, spec: desired.spec, signal: either })
    const [running] = await stopwatch.measure(
      'workload',
      Promise.all([
        reached,
        // The Pod has its Secret from the beginning. From now on, the cluster deletes both together.
        made === null || own.has_pull_secret !== true ? undefined : ownPullSecret(context, made, either),
        // A run without a workload may have taken a warm Pod, which has another name than a second one.
        own.has_workload || !context.warmPods.isOn
          ? Promise.resolve()
          : assertOnlyPod(context, { target, uid, run: desired, signal: either }),
      ]),
    )
    const link = desired.spec.patches.length === 0 ? null : await context.links.of(target, either)
    const copied = desired.volumes.find(({ kind }) => kind === 'host')
    const source = copied === undefined ? null : (context.claims?.filesForStart(copied, either) ?? null)
    if (link !== null) await applyPodPatches({ ...desired, link, source, tools: context.tools ?? TOOLS_FOLDER }, either)
    const facts = {
      ...(running === undefined ? {} : factsOf(running, context)),
      isolation: context.isolation,
      [ISOLATION_LEVEL_FACT]: context.level,
      pod: target.name,
      namespace: target.namespace,
    }
    const started: PodRunRecord = { ...own, facts, started: { pod_uid: uid } }
    records.write(started)
    if (record.has_workload) podLogs.begin(started)
    writeSystemLine(logs.writerOf(desired.sandbox_id), record.log_level, LIFECYCLE_LINES.started)
  } catch (error) {
    if (!limit.aborted || signal.aborted || error instanceof StartError) throw error
    throw new StartError(
      'host',
      `the Pod did not start in time: ${describeWaiting(context.pods.get(podOf(own).name), SANDBOX_CONTAINER)}`,
      error,
    )
  }
}

/** What a later proof of the network has shown, so that nothing may start. */
const NETWORK_LOST: Readonly<Record<NetworkMode, string>> = {
  prove: 'the cluster no longer enforces NetworkPolicies',
  rules: 'the rules of Pods no longer hold in the cluster',
  cluster: '',
}

type Acquired = {
  readonly uid: string
  readonly record: PodRunRecord
  /** The Pod as it was created. Null: a warm one, which owns its Secret already. */
  readonly made: Pod | null
}

/** Claims the warm Pod that the run's record names, or creates the run's own Pod. Resolves with the record that names the Pod. */
async function acquirePod(
  context: PodContext,
  desired: DesiredRun,
  { record, signal }: { readonly record: PodRunRecord; readonly signal: AbortSignal },
): Promise<Acquired> {
  const warm = context.warmPods.takenFor(desired.run_id)
  if (warm !== null) {
    const claimed = await claimPod(context, { target: warm, uid: warm.uid, run: desired, signal })
    if (claimed === 'claimed') return { uid: warm.uid, record, made: null }
    if (claimed === 'refused') await context.warmPods.turnOff(warm)
  }
  const { pod_name: _given, ...plain } = record
  if (warm !== null) context.records.write(plain)
  const credential = pullCredentialOf(desired)
  const made = await createPod(context, desired, { target: podOf(plain), credential, signal })
  return { uid: made.metadata.uid, record: plain, made }
}

type Creation = {
  readonly target: PodName
  readonly credential: string | null
  readonly signal: AbortSignal
}

async function createPod(
  context: PodContext,
  desired: DesiredRun,
  { target, credential, signal }: Creation,
): Promise<Pod> {
  const { pods, namespaces, policies, claims, warmPods, settings } = context
  await namespaces.prepare(desired, signal)
  let asked = 'Pod'
  try {
    using prepared = await claims?.prepare(desired, signal)
    const pod = makePod(desired, settings, prepared?.all ?? [])
    const policy = settings.policyOf?.(desired)
    // Before the Pod, so that no moment of it is without a policy.
    asked = 'NetworkPolicy of the sandbox'
    if (policy !== undefined) await policies?.ensure(target.namespace, policy, signal)
    asked = 'Secret with the credential of its image'
    if (credential !== null) await createPullSecret(context, target, { credential, signal })
    asked = 'Pod'
    return await pods.create(target, pod, signal)
  } catch (error) {
    if (isApiError(error, 404)) {
      namespaces.forget(desired.org_id)
      policies?.forget(target.namespace)
      throw new StartError('host', `the namespace ${target.namespace} is gone`, error)
    }
    if (isApiError(error, 403) && warmPods.pooledCount > 0) {
      await warmPods.removeAll() // they may be what the quota has no more space for
      return await createPod(context, desired, { target, credential, signal })
    }
    // Quotas and admission (403), and values that an object can't have (400, 422). The text names no secret.
    if (!isApiError(error, 400, 403, 422)) throw error
    const reason = error.status === 403 ? 'host' : 'config'
    throw new StartError(reason, `the cluster refuses the ${asked}: ${error.message}`, error)
  }
}

/** Waits until the agent in the sandbox answers. Resolves with the Pod, also if the workload has ended by then. */
async function waitUntilReached(
  context: PodContext,
  run: PodRunRecord,
  { uid, spec, signal }: { readonly uid: string; readonly spec: SandboxSpec; readonly signal: AbortSignal },
): Promise<Pod | undefined> {
  const { pods, warmPods, logs } = context
  const target = podOf(run)
  const tellWait = makeNodeWait((text) => {
    writeSystemLine(logs.writerOf(run.sandbox_id), run.log_level, LIFECYCLE_LINES.waits(text))
  })
  const judge = (pod: Pod | undefined): boolean => {
    if (pod?.metadata.uid !== uid || pod.metadata.deletionTimestamp !== undefined)
      throw new StartError('host', 'the Pod was deleted while it started')
    throwIfFailed(pod, spec.image)
    if (isUnschedulable(pod)) warmPods.removeAll().catch(() => undefined) // the next look at the Pods tries again
    tellWait(pod)
    return isOver(pod)
  }
  const link = await reachPod(context, target, { judge, signal }).catch((error: unknown) => {
    throw error instanceof AgentRefusal ? new StartError('config', error.message, error) : error
  })
  if (spec.rlimits.length > 0 && link?.setsLimits === false)
    throw new StartError('config', 'rlimits: the helper image of this worker is too old to set them')
  return pods.get(target.name) // the digest of the image may not be reported yet
}

/** The reasons of the kubelet for a container that will not run. Others, such as `ContainerCreating`, pass. */
const IMAGE_REASONS = ['ErrImagePull', 'ImagePullBackOff', 'ErrImageNeverPull', 'InvalidImageName', 'ImageInspectError']
const CONFIG_REASONS = ['CreateContainerConfigError', 'CreateContainerError', 'RunContainerError']
/** How the kubelet says that a container's first program could not be executed. */
const START_REASONS = ['StartError', 'ContainerCannotRun']

/** Throws `StartError` if the kubelet said that the Pod can't start. */
function throwIfFailed(pod: Pod, image: string): void {
  const fill = fillStatus(pod)
  const filled = fill?.state?.terminated
  if (filled !== undefined && filled.exitCode !== 0)
    throw new StartError(
      'host',
      `the toolbox could not be put into the Pod: ${filled.message ?? filled.reason ?? 'unknown'}. The helper image must be the one of this release`,
    )
  const rules = rulesStatus(pod)
  const loaded = rules?.state?.terminated
  if (loaded !== undefined && loaded.exitCode !== 0)
    throw new StartError(
      'host',
      `the rules of its network could not be loaded into the Pod: ${loaded.message ?? loaded.reason ?? 'unknown'}`,
    )
  const waiting = [rules, fill].map((one) => one?.state?.waiting).find((one) => isOfImage(one?.reason))
  if (waiting !== undefined)
    throw new StartError(
      'host',
      `the cluster can't pull the helper image (SANDYARD_KUBERNETES_HELPER_IMAGE): ${waiting.message ?? waiting.reason ?? 'unknown'}`,
    )
  const sandbox = sandboxStatus(pod)
  if (!isPulledBeforeSecret(pod)) throwIfContainerFailed(sandbox, image)
  if (pod.status?.phase === 'Failed' && sandbox?.state?.terminated === undefined)
    throw new StartError(
      'host',
      `the cluster ended the Pod: ${pod.status.reason ?? ''} ${pod.status.message ?? ''}`.trim(),
    )
}

/**
 * Whether the node pulled the image before it had read the Pod's Secret, of which it gives up waiting after a second
 * (containerd's words). It tries again after some ten seconds. A credential that the registry refuses reads otherwise.
 */
function isPulledBeforeSecret(pod: Pod): boolean {
  const { reason, message = '' } = sandboxStatus(pod)?.state?.waiting ?? {}
  const hasSecret = (pod.spec?.imagePullSecrets ?? []).length > 0
  return hasSecret && isOfImage(reason) && message.includes('no basic auth credentials')
}

function isOfImage(reason = ''): boolean {
  return IMAGE_REASONS.includes(reason)
}

function throwIfContainerFailed(status: ContainerStatus | undefined, image: string): void {
  const { waiting, terminated } = status?.state ?? {}
  const { reason = '', message = '' } = waiting ?? {}
  if (isOfImage(reason)) {
    const local = image.startsWith('localhost/')
      ? ". It is not loaded into this worker: see `sandyard image load` and SANDYARD_KUBERNETES_REGISTRY, or push it to a registry that the cluster's nodes reach"
      : ''
    throw new StartError('image', `the cluster can't pull ${image}: ${reason} ${message}${local}`)
  }
  if (CONFIG_REASONS.includes(reason))
    throw new StartError('config', `the container can't be made: ${message || reason}`)
  if (terminated?.reason !== undefined && START_REASONS.includes(terminated.reason))
    throw new StartError('config', `the workload can't be started: ${terminated.message ?? terminated.reason}`)
}

function factsOf(pod: Pod, { images }: Pick<PodContext, 'images'>): Readonly<Record<string, string>> {
  const digest = /sha256:[0-9a-f]{64}$/.exec(sandboxStatus(pod)?.imageID ?? '')?.[0]
  const node = pod.spec?.nodeName
  const loaded = digest === undefined ? undefined : (images?.loadedDigestOf(digest) ?? digest)
  return { ...(loaded === undefined ? {} : { image_digest: loaded }), ...(node === undefined ? {} : { node }) }
}
