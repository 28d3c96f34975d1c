import { TOOLS_FOLDER, toolCommand } from '../../../../contract/workers/guest-tools.ts'
import type { DesiredRun } from '../../../../contract/workers/worker-protocol.ts'
import { DISK_LABEL, DISK_OF_RUN } from '../../../../domain/sandboxes/disk-label.ts'
import { requiredDisk } from '../../../../domain/spec/required-abilities.ts'
import type { PullPolicy, SandboxSpec } from '../../../../domain/spec/spec.ts'
import { assertScriptNames, withInterpreter } from '../../shared/desired-run.ts'
import { StartError } from '../../../start-error.ts'
import type { RunClaim } from '../claim.ts'
import { podClaimsOf } from './pod-claims.ts'
import type { RunPolicy } from '../network/run-policy.ts'
import { literal } from '../literal.ts'
import { makeFillContainers, NOTHING_TO_FILL, type FillContainers } from './fill-container.ts'
import { limitVariables } from './pod-limits.ts'
import { tmpfsOf } from './pod-tmpfs.ts'
import { makeRulesContainer } from '../network/rules-container.ts'
import { LABELS, podNameOf, SANDBOX_CONTAINER } from '../pod.ts'
import type { ServedImages } from '../served-images.ts'

/** What a Pod needs besides the run's specification. */
export type PodSettings = {
  /** The id of this worker's data folder, in a label of each of its Pods. */
  readonly owner: string
  /** The image with the toolbox, as the cluster pulls it. */
  readonly helperImage: string
  /** The images that have the toolbox already. Null: none. */
  readonly images: Pick<ServedImages, 'hasToolbox'> | null
  /** Whether Pods get users of their own: no user of a Pod is one of its node. */
  readonly hasOwnUsers: boolean
  /** The name of the RuntimeClass. Null: the default runtime of the nodes. */
  readonly runtimeClass: string | null
  /** The policy of a run's network. Null: the cluster decides. Throws `StartError` for what can't be enforced. */
  readonly policyOf: ((run: Pick<DesiredRun, 'spec' | 'network_ranges'>) => RunPolicy) | null
}

/** The user of a sandbox whose specification names none. Restricted Pod security refuses root. */
const DEFAULT_USER = 1000
/** An argument of a program may have 128 KiB, and its dollar signs are doubled. */
const SCRIPT_PIECE_CHARACTERS = 40_000
/** The most that all scripts may have: etcd stores objects of up to 1.5 MiB. */
const SCRIPTS_MAX_BYTES = 512 * 1024
/** Until it is stopped, a Pod waits for no probe: its grace is given with its deletion. */
const GRACE_SECS = 30

const PULL_POLICIES: Readonly<Record<PullPolicy, string>> = {
  if_missing: 'IfNotPresent',
  always: 'Always',
  never: 'Never',
}
/** What all Pods of the driver have in their `spec`. */
export function commonPodSpec({ hasOwnUsers, runtimeClass }: PodSettings): object {
  return {
    restartPolicy: 'Never',
    automountServiceAccountToken: false,
    enableServiceLinks: false,
    nodeSelector: { 'kubernetes.io/os': 'linux', 'kubernetes.io/arch': ARCHITECTURES[process.arch] ?? process.arch },
    ...(hasOwnUsers ? { hostUsers: false } : {}),
    ...(runtimeClass === null ? {} : { runtimeClassName: runtimeClass }),
  }
}

const ARCHITECTURES: Readonly<Record<string, string>> = { x64: 'amd64', arm64: 'arm64', riscv64: 'riscv64' }

/**
 * Makes the Pod of a run. It satisfies the Pod Security Standard `restricted`, but for the container of rules. Throws
 * `StartError` of reason `config` for a value that a Pod can't have.
 */
export function makePod(desired: DesiredRun, settings: PodSettings, claims: readonly RunClaim[] = []): object {
  const { run_id, sandbox_id, spec, registry_auth, network_ranges } = desired
  assertScriptNames(spec)
  const [disk] = requiredDisk(spec)
  if (disk !== undefined)
    throw new StartError(
      'config',
      `this worker keeps no files of a stopped sandbox: create it with lifecycle.ephemeral, or with the label ${DISK_LABEL}: ${DISK_OF_RUN}`,
    )
  const { runtime, resources } = spec
  const { uid, gid } = userOf(runtime.user)
  const tmpfs = tmpfsOf(spec)
  const ofClaims = podClaimsOf(spec, claims)
  const policy = settings.policyOf?.({ spec, network_ranges })
  const rules = policy?.rules ?? null
  const limits = { cpu: String(resources.vcpus), memory: `${String(resources.memory_mib)}Mi` }
  const security = { allowPrivilegeEscalation: false, capabilities: { drop: ['ALL'] } }
  const fill = fillOf(desired, settings)
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      name: podNameOf(run_id),
      labels: {
        [LABELS.owner]: settings.owner,
        [LABELS.run]: run_id,
        [LABELS.sandbox]: sandbox_id,
        ...(policy === undefined ? {} : { [LABELS.network]: policy.label }),
        ...ofClaims.labels,
      },
      // An autoscaler that empties a node would end the sandbox.
      annotations: { 'cluster-autoscaler.kubernetes.io/safe-to-evict': 'false' },
    },
    spec: {
      ...(registry_auth === null ? {} : { imagePullSecrets: [{ name: podNameOf(run_id) }] }),
      ...ofClaims.spec,
      ...commonPodSpec(settings),
      terminationGracePeriodSeconds: GRACE_SECS,
      ...(runtime.hostname === null ? {} : { hostname: hostnameOf(runtime.hostname) }),
      securityContext: {
        runAsNonRoot: true,
        runAsUser: uid,
        runAsGroup: gid,
        seccompProfile: { type: 'RuntimeDefault' },
        ...ofClaims.security,
      },
      initContainers: [
        ...(rules === null ? [] : [makeRulesContainer(settings.helperImage, rules)]),
        ...fill.initContainers,
      ],
      containers: [
        ...fill.containers,
        {
          name: SANDBOX_CONTAINER,
          image: spec.image,
          imagePullPolicy: PULL_POLICIES[spec.pull_policy],
          ...commandOf(run_id, spec),
          ...(runtime.workdir === null ? {} : { workingDir: runtime.workdir }),
          env: [...environmentOf(spec), ...limitVariables(spec)],
          resources: { requests: limits, limits },
          securityContext: security,
          volumeMounts: [...fill.volumeMounts, ...tmpfs.volumeMounts, ...ofClaims.volumeMounts],
        },
      ],
      volumes: [...fill.volumes, ...tmpfs.volumes, ...ofClaims.volumes],
    },
  }
}

/** What fills the toolbox and the scripts into a Pod. Nothing if its image has the toolbox, and the sandbox no scripts. */
function fillOf(desired: DesiredRun, { helperImage, images }: PodSettings): FillContainers {
  const { runtime } = desired.spec
  const scripts = scriptArguments(desired.spec)
  if (scripts.length === 0 && images?.hasToolbox(desired) === true) return NOTHING_TO_FILL
  return makeFillContainers({ helperImage, scripts, isOfImage: runtime.cmd !== null && runtime.entrypoint === null })
}

/** The variables that Kubernetes adds to every container of every Pod. A value that a Pod gives itself replaces them. */
const ADDED_VARIABLES = [
  'KUBERNETES_SERVICE_HOST',
  'KUBERNETES_SERVICE_PORT',
  'KUBERNETES_SERVICE_PORT_HTTPS',
  'KUBERNETES_PORT',
  'KUBERNETES_PORT_443_TCP',
  'KUBERNETES_PORT_443_TCP_PROTO',
  'KUBERNETES_PORT_443_TCP_PORT',
  'KUBERNETES_PORT_443_TCP_ADDR',
]

function environmentOf({ env }: SandboxSpec): readonly object[] {
  const own = new Set(env.map(({ key }) => key))
  return [
    ...ADDED_VARIABLES.filter((name) => !own.has(name)).map((name) => ({ name, value: '' })),
    ...env.map(({ key, value }) => ({ name: key, value: literal(value) })),
  ]
}

/**
 * The command of the container. Only the node knows the entrypoint of the image. If the image's is asked for, the workload is therefore
 * process 1 itself, and otherwise the toolbox's init is. Without a workload, the init waits.
 */
function commandOf(run_id: string, { runtime, patches }: SandboxSpec): object {
  const { cmd, entrypoint, scripts } = runtime
  const init = `${TOOLS_FOLDER}/init`
  if (cmd === null) return { command: [init, '-P'] }
  if (entrypoint !== null) {
    const wait = patches.length === 0 ? [] : ['--wait', run_id]
    return { command: verbatim([...toolCommand('workload.pl', wait), init, '--', ...entrypoint, ...cmd]) }
  }
  if (patches.length > 0)
    throw new StartError(
      'config',
      'patches with runtime.cmd also need runtime.entrypoint on this worker: only the node knows that of the image',
    )
  if (Object.keys(scripts).length > 0)
    throw new StartError(
      'config',
      'runtime.scripts with runtime.cmd also needs runtime.entrypoint on this worker: only the node knows that of the image',
    )
  return { args: verbatim(cmd) }
}

function scriptArguments({ runtime: { scripts, shell } }: SandboxSpec): readonly string[] {
  const texts = Object.entries(scripts).map(([name, text]) => [name, withInterpreter(text, shell)] as const)
  if (texts.reduce((sum, [, text]) => sum + Buffer.byteLength(text), 0) > SCRIPTS_MAX_BYTES)
    throw new StartError('config', `runtime.scripts may have ${String(SCRIPTS_MAX_BYTES)} bytes in all on this worker`)
  return texts.flatMap(([name, text]) => {
    const pieces = text.match(new RegExp(`[^]{1,${String(SCRIPT_PIECE_CHARACTERS)}}`, 'g')) ?? []
    return [name, String(pieces.length), ...pieces]
  })
}

function verbatim(words: readonly string[]): readonly string[] {
  return words.map(literal)
}

const ID_MAX = 0xffff_fffe

function userOf(user: string | null): { readonly uid: number; readonly gid: number } {
  if (user === null) return { uid: DEFAULT_USER, gid: DEFAULT_USER }
  const [, uid = '', gid = uid] = /^(\d{1,10})(?::(\d{1,10}))?$/.exec(user) ?? []
  const ids = { uid: Number(uid), gid: Number(gid) }
  if (uid === '' || ids.uid === 0 || ids.uid > ID_MAX || ids.gid > ID_MAX)
    throw new StartError(
      'config',
      `runtime.user '${user}': on this worker a user is a number other than 0, as UID or UID:GID, because its Pods have no root`,
    )
  return ids
}

function hostnameOf(hostname: string): string {
  if (!/^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/.test(hostname))
    throw new StartError(
      'config',
      `runtime.hostname '${hostname}': on this worker it has at most 63 lower-case letters, digits and hyphens`,
    )
  return hostname
}
