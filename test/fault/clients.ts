import { createSandbox } from '../../src/control/sandboxes/create-sandbox.ts'
import { deleteSandbox } from '../../src/control/sandboxes/delete-sandbox.ts'
import { renameSandbox } from '../../src/control/sandboxes/rename-sandbox.ts'
import { startSandbox } from '../../src/control/sandboxes/start-sandbox.ts'
import { stopSandbox } from '../../src/control/sandboxes/stop-sandbox.ts'
import type { Caller } from '../../src/domain/orgs/caller.ts'
import type { SandboxId } from '../../src/domain/ids.ts'
import { Problem } from '../../src/domain/problem.ts'
import type { SandboxSpec } from '../../src/domain/spec/spec.ts'
import { PLAIN_SPEC } from '../support/spec.ts'
import type { Acks } from './acks.ts'
import { makeLife, type Gates } from './gates.ts'
import type { Replica } from './replica.ts'
import type { Seeded } from './seeded.ts'
import type { Snapshot } from './snapshot.ts'

/** What a client asked for, and what it knows of it. `unknown`: no answer came, or one that says that nobody knows. */
export type Asked = {
  readonly kind: ClientOp
  readonly sandbox: SandboxId | null
  readonly at: number
  /** With a create: whether it starts what it makes. */
  readonly starts: boolean
  outcome: 'unknown' | 'acknowledged' | 'refused'
  /** When the answer came. */
  until: number
  /** The sandbox that a create made. */
  made: SandboxId | null
}

export type ClientOp = 'create' | 'start' | 'stop' | 'delete' | 'rename'

/** Clients of the API, which never wait for one answer before they ask for the next thing. */
export type Clients = {
  /** Asks a replica for something; the answer says what, for the trace. */
  ask(op: ClientOp, replica: Replica, seen: Snapshot): string
  readonly asked: readonly Asked[]
}

const IMAGES = ['calm', 'calm', 'calm', 'slow', 'stubborn', 'broken']
const LASTING: SandboxSpec['lifecycle'] = PLAIN_SPEC.lifecycle
const LIFECYCLES = [
  LASTING,
  LASTING,
  LASTING,
  { ...LASTING, ephemeral: true },
  { ...LASTING, max_duration_secs: 5 },
  { ...LASTING, idle_timeout_secs: 5 },
]
const NAMES = ['ada', 'ben', 'cyd']
const never = new AbortController().signal

/** Makes the clients of one schedule. */
export function makeClients(world: {
  readonly gates: Gates
  readonly caller: Caller
  readonly seeded: Seeded
  readonly acks: Acks
}): Clients {
  const { gates, caller, seeded, acks } = world
  const asked: Asked[] = []
  const cable = makeLife('clients')
  const renamed = new Set<SandboxId>()
  let moments = 0

  const follow = async <T>(one: Asked, work: Promise<T>, acknowledge: (answer: T) => void): Promise<void> => {
    try {
      const answer = await work
      await gates.pass(cable, { kind: 'answer', label: one.kind, endings: ['done', 'refused'] }, () => null)
      one.outcome = 'acknowledged'
      acknowledge(answer)
    } catch (error) {
      if (error instanceof Problem) one.outcome = 'refused'
    }
    one.until = ++moments
  }

  return {
    asked,
    ask(op, { deps }, seen) {
      const sandboxes = [...seen.sandboxes.values()].map(({ id }) => id)
      const sandbox = op === 'create' || sandboxes.length === 0 ? null : seeded.pick(sandboxes)
      const kind = sandbox === null ? 'create' : op
      const starts = kind === 'create' && seeded.chance(85)
      const one: Asked = {
        kind,
        sandbox,
        starts,
        at: ++moments,
        outcome: 'unknown',
        until: Infinity,
        made: null,
      }
      asked.push(one)
      if (sandbox === null) {
        const image = seeded.pick(IMAGES)
        const name = seeded.chance(20) ? seeded.pick(NAMES) : null
        const input = {
          spec: { ...PLAIN_SPEC, image: `registry.example/${image}:1`, lifecycle: seeded.pick(LIFECYCLES) },
          name,
          slug: null,
          registry: { mode: 'auto' },
          start: one.starts,
          waitMs: null,
          signal: never,
        } as const
        void follow(one, createSandbox(deps, caller, input), ({ id }) => {
          one.made = id
          acks.created.add(id)
        })
        return `create ${image}${name === null ? '' : ` named ${name}`}`
      }
      const ref = { id: sandbox }
      if (op === 'start') {
        void follow(one, startSandbox(deps, caller, ref, { waitMs: null, signal: never }), () => undefined)
      } else if (op === 'stop') {
        const open = [...seen.runs.values()].filter((run) => run.sandbox_id === sandbox && run.ended_at === null)
        void follow(one, stopSandbox(deps, caller, ref), () => {
          for (const { id } of open) acks.stopped.add(id)
        })
      } else if (op === 'delete') {
        void follow(one, deleteSandbox(deps, caller, ref), () => acks.deleted.add(sandbox))
      } else {
        const name = seeded.pick(NAMES)
        const isFirst = !renamed.has(sandbox)
        renamed.add(sandbox)
        acks.named.delete(sandbox)
        let isLast = isFirst
        const before = asked.length
        void follow(one, renameSandbox(deps, caller, ref, { name }), () => {
          isLast = isFirst && !asked.slice(before).some((later) => later.kind === 'rename' && later.sandbox === sandbox)
          if (isLast) acks.named.set(sandbox, name)
        })
        return `rename ${sandbox} to ${name}`
      }
      return `${op} ${sandbox}`
    },
  }
}
