import { createSandbox } from '../../src/control/sandboxes/create-sandbox.ts'
import { deleteSandbox } from '../../src/control/sandboxes/delete-sandbox.ts'
import { renameSandbox } from '../../src/control/sandboxes/rename-sandbox.ts'
import { startSandbox } from '../../src/control/sandboxes/start-sandbox.ts'
import { stopSandbox } from '../../src/control/sandboxes/stop-sandbox.ts'
import type { Caller } from '../../src/domain/orgs/caller.ts'
import type { RunId, SandboxId } from '../../src/domain/ids.ts'
import { Problem } from '../../src/domain/problem.ts'
import type { SandboxSpec } from '../../src/domain/spec/spec.ts'
import { RESTART_LABEL, RESTART_POLICIES } from '../../src/domain/sandboxes/restart.ts'
import { PLAIN_SPEC } from '../support/spec.ts'
import { makeIncarnation, type Gates } from './gates.ts'
import type { Replica } from './replica.ts'
import type { SeededChoices } from './seeded-choices.ts'
import type { Snapshot } from './snapshot.ts'

/** The changes that replicas acknowledged to clients. None of them may ever be lost. */
export type Acknowledgements = {
  readonly created: Set<SandboxId>
  readonly deleted: Set<SandboxId>
  /** Runs that were open when a client sent a stop that was acknowledged. */
  readonly stopped: Set<RunId>
  /** Names given by an acknowledged rename. Sandboxes with a later rename, whatever its outcome, are left out. */
  readonly named: Map<SandboxId, string>
}

/** Creates an empty record of acknowledged changes. */
export function makeAcknowledgements(): Acknowledgements {
  return { created: new Set(), deleted: new Set(), stopped: new Set(), named: new Map() }
}

/**
 * A client's request, and its outcome as the client knows it. `unknown`: the client got no answer, or an answer that
 * leaves open whether the request was carried out.
 */
export type ClientRequest = {
  readonly kind: ClientOp
  readonly sandbox: SandboxId | null
  readonly sentAt: number
  /** For a create: whether it also starts the sandbox. */
  readonly starts: boolean
  outcome: 'unknown' | 'acknowledged' | 'refused'
  /**
   * The position of the answer in the sequence of all requests and answers, like `sentAt`. Infinity if there is no
   * answer.
   */
  answeredAt: number
  /** For an acknowledged create: the id of the new sandbox. */
  createdId: SandboxId | null
}

export type ClientOp = 'create' | 'start' | 'stop' | 'delete' | 'rename'

/** Clients of the API. They don't wait for an answer before they send the next request. */
export type Clients = {
  /**
   * Sends a request about a random sandbox of `seen` to a replica. Returns a description of the request for the trace.
   */
  send(op: ClientOp, replica: Replica, seen: Snapshot): string
  readonly requests: readonly ClientRequest[]
}

const IMAGES = ['calm', 'calm', 'calm', 'slow', 'stubborn', 'broken']
const PERSISTENT: SandboxSpec['lifecycle'] = PLAIN_SPEC.lifecycle
const LIFECYCLES = [
  PERSISTENT,
  PERSISTENT,
  PERSISTENT,
  { ...PERSISTENT, ephemeral: true },
  { ...PERSISTENT, max_duration_secs: 5 },
  { ...PERSISTENT, idle_timeout_secs: 5 },
]
const NAMES = ['ada', 'ben', 'cyd']

/** Creates the clients of one schedule. */
export function makeClients(world: {
  readonly gates: Gates
  readonly caller: Caller
  readonly seeded: SeededChoices
  readonly acknowledged: Acknowledgements
}): Clients {
  const { gates, caller, seeded, acknowledged } = world
  const requests: ClientRequest[] = []
  const clientSide = makeIncarnation('clients')
  const renamed = new Set<SandboxId>()
  let lastMoment = 0

  const trackAnswer = async <T>(
    one: ClientRequest,
    work: Promise<T>,
    acknowledge: (answer: T) => void,
  ): Promise<void> => {
    try {
      const answer = await work
      await gates.pass(clientSide, { kind: 'answer', label: one.kind, endings: ['done', 'refused'] }, () => null)
      one.outcome = 'acknowledged'
      acknowledge(answer)
    } catch (error) {
      if (error instanceof Problem) one.outcome = 'refused'
    }
    one.answeredAt = ++lastMoment
  }

  return {
    requests,
    send(op, { deps }, seen) {
      const sandboxes = [...seen.sandboxes.values()].map(({ id }) => id)
      const sandbox = op === 'create' || sandboxes.length === 0 ? null : seeded.pick(sandboxes)
      const kind = sandbox === null ? 'create' : op
      const starts = kind === 'create' && seeded.chance(85)
      const one: ClientRequest = {
        kind,
        sandbox,
        starts,
        sentAt: ++lastMoment,
        outcome: 'unknown',
        answeredAt: Infinity,
        createdId: null,
      }
      requests.push(one)
      if (sandbox === null) {
        const image = seeded.pick(IMAGES)
        const name = seeded.chance(20) ? seeded.pick(NAMES) : null
        const lifecycle = seeded.pick(LIFECYCLES)
        const labels =
          lifecycle.ephemeral || !seeded.chance(40) ? {} : { [RESTART_LABEL]: seeded.pick(RESTART_POLICIES) }
        const input = {
          spec: { ...PLAIN_SPEC, image: `registry.example/${image}:1`, lifecycle, labels },
          name,
          slug: null,
          registry: { mode: 'auto' },
          start: one.starts,
          waitMs: null,
          signal: gates.ended,
        } as const
        void trackAnswer(one, createSandbox(deps, caller, input), ({ id }) => {
          one.createdId = id
          acknowledged.created.add(id)
        })
        return `create ${image}${name === null ? '' : ` named ${name}`}`
      }
      const ref = { id: sandbox }
      if (op === 'start') {
        void trackAnswer(one, startSandbox(deps, caller, ref, { waitMs: null, signal: gates.ended }), () => undefined)
      } else if (op === 'stop') {
        const open = [...seen.runs.values()].filter((run) => run.sandbox_id === sandbox && run.ended_at === null)
        void trackAnswer(one, stopSandbox(deps, caller, ref), () => {
          for (const { id } of open) acknowledged.stopped.add(id)
        })
      } else if (op === 'delete') {
        void trackAnswer(one, deleteSandbox(deps, caller, ref), () => acknowledged.deleted.add(sandbox))
      } else {
        const name = seeded.pick(NAMES)
        const isFirst = !renamed.has(sandbox)
        renamed.add(sandbox)
        acknowledged.named.delete(sandbox)
        let isLast = isFirst
        const before = requests.length
        void trackAnswer(one, renameSandbox(deps, caller, ref, { name }), () => {
          isLast =
            isFirst && !requests.slice(before).some((later) => later.kind === 'rename' && later.sandbox === sandbox)
          if (isLast) acknowledged.named.set(sandbox, name)
        })
        return `rename ${sandbox} to ${name}`
      }
      return `${op} ${sandbox}`
    },
  }
}
