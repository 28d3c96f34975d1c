import assert from 'node:assert/strict'
import { PassThrough } from 'node:stream'
import { test } from 'node:test'
import fc from 'fast-check'
import { asId, type RunId } from '../../../../src/domain/ids.ts'
import { TcpFailure, type Guest, type GuestProcess } from '../../../../src/worker/channel/guest.ts'
import { makeRunActivity, type RunActivity } from '../../../../src/worker/drivers/shared/run-activity.ts'
import { FileFailure } from '../../../../src/worker/channel/guest-files.ts'
import { connectAgent, type AgentClient } from '../../../support/agent-client.ts'
import { makeTestClock, type TestClock } from '../../../support/test-clock.ts'
import { waitUntil } from '../../../support/wait.ts'

const RUNS = [asId<RunId>('run-a'), asId<RunId>('run-b'), asId<RunId>('run-c')] as const
const TIMEOUTS_SECS: Readonly<Record<string, number>> = { 'run-a': 1, 'run-b': 3, 'run-c': 60 }
const timeoutOf = (run: RunId): number => TIMEOUTS_SECS[run] ?? 0

/** Lets all pending promise callbacks run. */
async function settle(): Promise<void> {
  for (let turn = 0; turn < 3; turn++) await new Promise((resolve) => setImmediate(resolve))
}

/** A guest whose one process runs until a test ends it. */
function makeGuest(): { readonly guest: Guest; readonly end: () => void; readonly say: () => void } {
  let current: { readonly stdout: PassThrough; readonly exit: (code: number) => void } | null = null
  const guest: Guest = {
    connect: () => Promise.reject(new TcpFailure('nothing listens')),
    openFiles: () => Promise.reject(new FileFailure('no files')),
    exec() {
      const { promise: exited, resolve: exit } = Promise.withResolvers<number>()
      const stdout = new PassThrough()
      current = { stdout, exit }
      const process: GuestProcess = {
        pid: 1,
        stdin: new PassThrough(),
        stdout,
        stderr: null,
        exited,
        resize: () => undefined,
        signal: () => undefined,
      }
      return Promise.resolve(process)
    },
  }
  return {
    guest,
    say: () => current?.stdout.write('x'),
    end: () => {
      current?.stdout.end()
      current?.exit(0)
    },
  }
}

type World = { readonly clock: TestClock; activity: RunActivity; readonly told: { atMs: number; idle: RunId[] }[] }

/** Makes the activity tracker of one worker process. It adds to `told` whenever runs become idle. */
function live({ clock, told }: Omit<World, 'activity'>): RunActivity {
  const activity = makeRunActivity(clock, () => {
    told.push({ atMs: clock.monotonicMs(), idle: RUNS.filter((run) => activity.isIdle(run)) })
  })
  for (const run of RUNS) activity.track(run, timeoutOf(run))
  return activity
}

type Connection = { readonly client: AgentClient; readonly guest: ReturnType<typeof makeGuest> }

function connect(world: World, run: RunId): Connection {
  const guest = makeGuest()
  const use = { onActivity: () => world.activity.touch(run), onProcess: () => world.activity.hold(run) }
  return { guest, client: connectAgent(guest.guest, { deps: use }) }
}

const anyStep = fc.oneof(
  { weight: 6, arbitrary: fc.record({ kind: fc.constant('wait' as const), ms: fc.oneof(fc.integer({ min: 1, max: 1_200 }), fc.constant(1_000), fc.constant(59_000)) }) },
  { weight: 6, arbitrary: fc.record({ kind: fc.constantFrom('ping', 'touch', 'exec', 'output', 'exit', 'unknown', 'hang up'), run: fc.constantFrom(...RUNS) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('restart' as const) }) },
) // prettier-ignore

test('a run is reported idle exactly when its timeout is over: pings don’t count, a running process keeps it in use, and a restart starts the time again', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(anyStep, { maxLength: 40 }), async (steps) => {
      const clock = makeTestClock()
      const base = { clock, told: [] }
      const world: World = { ...base, activity: live(base) }
      const connections = new Map(RUNS.map((run) => [run, connect(world, run)]))
      const lastMs = new Map<RunId, number>(RUNS.map((run) => [run, 0]))
      const held = new Map<RunId, number>()
      const tellAt = new Map<RunId, number | null>(RUNS.map((run) => [run, timeoutOf(run) * 1000]))
      await settle()
      const used = (run: RunId): void => {
        lastMs.set(run, clock.monotonicMs())
        tellAt.set(run, held.has(run) ? null : clock.monotonicMs() + timeoutOf(run) * 1000)
      }
      /**
       * Advances the clock by `ms`, with a stop at each millisecond at which a run becomes idle and at the one before.
       */
      const pass = async (ms: number): Promise<void> => {
        const endMs = clock.monotonicMs() + ms
        for (;;) {
          const due = RUNS.flatMap((run) => tellAt.get(run) ?? []).filter(
            (at) => at > clock.monotonicMs() && at <= endMs,
          )
          const nextMs = Math.min(endMs, ...due.flatMap((at) => (at - 1 > clock.monotonicMs() ? [at - 1, at] : [at])))
          if (nextMs <= clock.monotonicMs()) return
          const before = world.told.length
          clock.advance(nextMs - clock.monotonicMs())
          await settle()
          const expected = RUNS.filter((run) => tellAt.get(run) === nextMs)
          const told = world.told.slice(before)
          assert.equal(told.length, expected.length === 0 ? 0 : 1)
          assert.ok(expected.every((run) => told[0]?.idle.includes(run)))
          check()
        }
      }
      const check = (): void => {
        for (const run of RUNS) {
          const isOver = clock.monotonicMs() - (lastMs.get(run) ?? 0) >= timeoutOf(run) * 1000
          assert.equal(world.activity.isIdle(run), isOver && !held.has(run))
        }
      }
      try {
        for (const step of steps) {
          if (step.kind === 'wait') await pass(step.ms)
          else if (step.kind === 'restart') {
            await world.activity.close()
            for (const { client, guest } of connections.values()) {
              guest.end()
              await client.hangUp()
            }
            world.activity = live(world)
            for (const run of RUNS) connections.set(run, connect(world, run))
            held.clear()
            RUNS.forEach(used)
          } else {
            const { client, guest } = connections.get(step.run) ?? connect(world, step.run)
            const process = held.get(step.run)
            const seen = client.received.length
            if (step.kind === 'hang up') {
              guest.end()
              await client.hangUp()
              held.delete(step.run)
              if (process !== undefined) used(step.run)
              connections.set(step.run, connect(world, step.run))
            } else if (step.kind === 'exec' && process === undefined) {
              const id = client.exec({ cmd: 'x' })
              await client.next((message) => message.id === id)
              held.set(step.run, id)
              used(step.run)
            } else if (step.kind === 'output' && process !== undefined) {
              guest.say()
              await waitUntil(() => client.received.length > seen)
              used(step.run)
            } else if (step.kind === 'exit' && process !== undefined) {
              guest.end()
              await client.finish(process)
              held.delete(step.run)
              used(step.run)
            } else if (step.kind === 'ping' || step.kind === 'touch') {
              client.send(1_000, `core.${step.kind}`, {})
              await waitUntil(() => client.received.length > seen)
              if (step.kind === 'touch') used(step.run)
            } else if (step.kind === 'unknown') {
              client.send(1_001, 'core.pong', {})
              await waitUntil(() => client.received.some(({ type }, index) => index >= seen && type === 'core.error'))
            }
            await settle()
          }
          check()
        }
        await pass(120_000)
      } finally {
        for (const { client, guest } of connections.values()) {
          guest.end()
          await client.hangUp()
        }
        await world.activity.close()
      }
    }),
    { numRuns: 100 },
  )
})

test('a run that is not tracked, or no longer tracked, is never reported as idle', async () => {
  const clock = makeTestClock()
  let told = 0
  const activity = makeRunActivity(clock, () => (told += 1))
  const [one, other] = RUNS
  activity.touch(other)
  activity.hold(other)()
  activity.track(one, 1)
  activity.forget(one)
  await settle()
  clock.advance(10_000)
  await settle()
  assert.deepEqual([activity.isIdle(one), activity.isIdle(other), told], [false, false, 0])
  await activity.close()
  assert.equal(clock.sleepers, 0)
})
