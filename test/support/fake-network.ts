import type { WebSocket } from 'ws'
import type { FakeCluster, FakeObject, FakePod } from './fake-kubernetes.ts'

/** What the fake's network does with the Pods of canaries. A test changes it. Nothing else of the fake has a network. */
export type FakeNetwork = {
  /** The directions in which NetworkPolicies are enforced. */
  enforced: readonly ('Egress' | 'Ingress')[]
  /** Whether nothing reaches anything, whatever policies say. */
  isBroken: boolean
  /** Whether the Pods of canaries start. */
  starts: boolean
  /** How many of the next commands in canaries are cut off before they end. */
  cutCommands: number
}

const CANARY = 'sandyard.dev/canary'
const START_MS = 5
/** The exit code of `canary.pl reach` if no connection was accepted. */
const CLOSED = 3

/** An enforcer of NetworkPolicies, unless a test changes it. */
export function makeFakeNetwork(): FakeNetwork {
  return { enforced: ['Egress', 'Ingress'], isBroken: false, starts: true, cutCommands: 0 }
}

export function isCanary({ metadata }: FakePod): boolean {
  return metadata.labels?.[CANARY] !== undefined
}

/** Lets the Pod of a canary run. */
export function runCanaryPod({ metadata: { name } }: FakePod, cluster: FakeCluster): void {
  if (!cluster.network.starts) return
  setTimeout(() => {
    cluster.setStatus(name, { phase: 'Running', podIPs: [{ ip: '10.0.0.1' }] })
  }, START_MS)
}

/** Answers the command that tries a connection from one Pod of a canary to the other. */
export function tryConnection({ metadata }: FakePod, { network, objects }: FakeCluster, socket: WebSocket): void {
  if (network.cutCommands > 0) {
    network.cutCommands -= 1
    socket.terminate()
    return
  }
  const isDenied = [...objects.values()].some(
    (object) =>
      object.metadata.labels?.[CANARY] === metadata.labels?.[CANARY] &&
      network.enforced.some((one) => denies(object, one)),
  )
  const causes = [{ reason: 'ExitCode', message: String(CLOSED) }]
  const failure = { status: 'Failure', reason: 'NonZeroExitCode', message: 'exited', details: { causes } }
  const status = isDenied || network.isBroken ? failure : { status: 'Success' }
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
