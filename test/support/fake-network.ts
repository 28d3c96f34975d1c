import type { WebSocket } from 'ws'
import { CANARY_LIMITS } from '../../src/worker/drivers/kubernetes/network/canary-pods.ts'
import type { FakeCluster, FakeObject, FakePod } from './fake-kubernetes.ts'

/** What the fake's network does with the Pods of canaries. A test changes it. Nothing else of the fake has a network. */
export type FakeNetwork = {
  /** The directions in which NetworkPolicies are enforced. */
  enforced: readonly ('Egress' | 'Ingress')[]
  /** Whether nothing reaches anything, whatever policies say. */
  isBroken: boolean
  /** Whether the Pods of canaries start. */
  starts: boolean
  /** Whether the namespaces admit the capability that loads packet rules, and whether the kernels of nodes obey them. */
  admitsRules: boolean
  obeysRules: boolean
  /** Whether a quota refuses every further Pod. */
  isFull: boolean
  /** How many of the next commands in canaries are cut off before they end. */
  cutCommands: number
}

/** The limits of canaries on the fake. With `SHORT_CANARY_LIMITS`, what one waits for never comes. */
export const FAKE_CANARY_LIMITS = { ...CANARY_LIMITS, lookMs: 5 }
export const SHORT_CANARY_LIMITS = { ...FAKE_CANARY_LIMITS, startMs: 50, changeMs: 50 }

const CANARY = 'sandyard.dev/canary'
const START_MS = 5
/** The exit code of `canary.pl reach` if no connection was accepted. */
const CLOSED = 3

/** An enforcer of NetworkPolicies, unless a test changes it. */
export function makeFakeNetwork(): FakeNetwork {
  return {
    enforced: ['Egress', 'Ingress'],
    isBroken: false,
    starts: true,
    admitsRules: true,
    obeysRules: true,
    isFull: false,
    cutCommands: 0,
  }
}

export function isCanary({ metadata }: FakePod): boolean {
  return metadata.labels?.[CANARY] !== undefined
}

/** Whether the admission of the cluster takes a Pod. */
export function isAdmitted(pod: FakePod, { admitsRules, isFull }: FakeNetwork): boolean {
  return !isFull && (admitsRules || !hasRules(pod))
}

function hasRules({ spec }: FakePod): boolean {
  return JSON.stringify(spec['initContainers'] ?? []).includes('NET_ADMIN')
}

const ADDRESSES: Readonly<Record<string, string>> = { server: '10.0.0.1', client: '10.0.0.2' }

function addressOf({ metadata }: FakePod): string {
  return ADDRESSES[metadata.labels?.[`${CANARY}-part`] ?? ''] ?? ''
}

/** Lets the Pod of a canary run. */
export function runCanaryPod(pod: FakePod, cluster: FakeCluster): void {
  if (!cluster.network.starts) return
  setTimeout(() => {
    cluster.setStatus(pod.metadata.name, { phase: 'Running', podIPs: [{ ip: addressOf(pod) }] })
  }, START_MS)
}

/** Answers the command that tries a connection from one Pod of a canary to another, or to itself. */
export function tryConnection(
  pod: FakePod,
  { network, objects, pods }: FakeCluster,
  { command, socket }: { readonly command: readonly string[]; readonly socket: WebSocket },
): void {
  const { metadata } = pod
  if (network.cutCommands > 0) {
    network.cutCommands -= 1
    socket.terminate()
    return
  }
  const [address, port] = command.slice(command.indexOf('reach') + 1)
  const target = [...pods.values()].find((one) => isCanary(one) && addressOf(one) === address)
  const isOther = address !== addressOf(pod)
  const isClosed = port !== '8080' // by the rules of the client
  const isDeniedByRules =
    network.obeysRules && isOther && ((hasRules(pod) && isClosed) || (target !== undefined && hasRules(target)))
  const isDenied = [...objects.values()].some(
    (object) =>
      object.metadata.labels?.[CANARY] === metadata.labels?.[CANARY] &&
      network.enforced.some((one) => denies(object, one)),
  )
  const causes = [{ reason: 'ExitCode', message: String(CLOSED) }]
  const failure = { status: 'Failure', reason: 'NonZeroExitCode', message: 'exited', details: { causes } }
  const status = isDenied || isDeniedByRules || network.isBroken ? failure : { status: 'Success' }
  socket.send(Buffer.concat([Buffer.of(3), Buffer.from(JSON.stringify(status))]))
  socket.close()
}

/** Whether a policy of a canary, which allows everything or nothing, denies a direction. */
function denies({ spec }: FakeObject, direction: 'Egress' | 'Ingress'): boolean {
  const {
    policyTypes,
    egress = [],
    ingress = [],
  } = spec as {
    readonly policyTypes: readonly string[]
    readonly egress?: readonly object[]
    readonly ingress?: readonly object[]
  }
  return policyTypes.includes(direction) && (direction === 'Egress' ? egress : ingress).length === 0
}

/** The policies of a namespace that a selector of the form KEY, !KEY or KEY=VALUE selects. */
export function listPolicies(
  objects: FakeCluster['objects'],
  path: string,
  query: URLSearchParams,
): readonly FakeObject[] {
  const [, not, key = '', value] = /^(!?)([^=]*)(?:=(.*))?$/.exec(query.get('labelSelector') ?? '') ?? []
  return [...objects].flatMap(([at, object]) => {
    const label = object.metadata.labels?.[key]
    const isSelected = key === '' || (value === undefined ? (label === undefined) === (not === '!') : label === value)
    return at.startsWith(`${path}/`) && isSelected ? [object] : []
  })
}
