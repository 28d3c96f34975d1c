import assert from 'node:assert/strict'
import { test } from 'node:test'
import { makeLog } from '../../src/lib/log.ts'
import { runLoops, type Loop, type LoopDeps } from '../../src/loops/loop.ts'
import { makeTestClock, type TestClock } from '../support/test-clock.ts'
import { waitUntil } from '../support/wait.ts'

type World = {
  readonly clock: TestClock
  readonly deps: LoopDeps
  readonly wake: () => void
  /** Ends the current leadership. */
  readonly loseLead: () => void
}

/** Makes the dependencies of loops: a test clock, and a leadership that one process at a time gets. */
function makeWorld(): World {
  const clock = makeTestClock()
  const callbacks = new Set<() => void>()
  let holder: AbortController | null = null
  return {
    clock,
    wake: () => {
      for (const callback of callbacks) callback()
    },
    loseLead: () => {
      holder?.abort(new Error('the lead is lost'))
      holder = null
    },
    deps: {
      clock,
      log: makeLog('silent'),
      notifications: {
        subscribe: (_topic, callback) => {
          callbacks.add(callback)
          return () => callbacks.delete(callback)
        },
      },
      acquireLeadership: (signal) => {
        signal.throwIfAborted()
        if (holder !== null) return Promise.reject(new Error('another one leads'))
        const mine = new AbortController()
        holder = mine
        return Promise.resolve({
          lost: mine.signal,
          fence: () => Promise.resolve(),
          [Symbol.asyncDispose]: () => {
            if (holder === mine) holder = null
            return Promise.resolve()
          },
        })
      },
    },
  }
}

function makeLoop(run: Loop['run'], periodMs = 10_000): Loop {
  return { name: 'test', periodMs, topics: ['t'], run }
}

test('a pass runs at once, then after each period, and sooner when the pass says so', async () => {
  const { clock, deps } = makeWorld()
  const ending = new AbortController()
  let passes = 0
  const loop = makeLoop(() => Promise.resolve(++passes === 2 ? 500 : null))
  const running = runLoops(deps, () => [loop], ending.signal)
  await waitUntil(() => passes === 1 && clock.sleepers === 1)
  clock.advance(9_999)
  clock.advance(1)
  await waitUntil(() => passes === 2 && clock.sleepers === 1)
  clock.advance(500)
  await waitUntil(() => passes === 3)
  ending.abort(new Error('over'))
  await running
})

test('passes never overlap, and a notification during one starts another at once', async () => {
  const { deps, wake } = makeWorld()
  const ending = new AbortController()
  let passes = 0
  let atOnce = 0
  let { promise: mayEnd, resolve: endPass } = Promise.withResolvers<void>()
  const loop = makeLoop(async () => {
    passes += 1
    assert.equal(++atOnce, 1)
    await mayEnd
    atOnce -= 1
    return null
  })
  const running = runLoops(deps, () => [loop], ending.signal)
  await waitUntil(() => passes === 1)
  wake()
  wake()
  const end = endPass
  ;({ promise: mayEnd, resolve: endPass } = Promise.withResolvers<void>())
  end()
  await waitUntil(() => passes === 2) // the clock has not advanced, so the notification alone caused this pass
  endPass()
  ending.abort(new Error('over'))
  await running
  assert.equal(passes, 2)
})

test('a failed pass is repeated after the period, and disturbs neither leadership nor other loops', async () => {
  const { clock, deps } = makeWorld()
  const ending = new AbortController()
  let [passes, others] = [0, 0]
  const failing = makeLoop(() => (++passes === 1 ? Promise.reject(new Error('broken')) : Promise.resolve(null)))
  const other = makeLoop(() => Promise.resolve(++others && null))
  const running = runLoops(deps, () => [failing, other], ending.signal)
  await waitUntil(() => passes === 1 && clock.sleepers === 2)
  clock.advance(10_000)
  await waitUntil(() => passes === 2 && others === 2)
  ending.abort(new Error('over'))
  await running
})

test('of two replicas one runs the loops, and the other takes over when leadership is lost', async () => {
  const { clock, deps, loseLead } = makeWorld()
  const ending = new AbortController()
  const passes = { a: 0, b: 0 }
  const loopOf = (name: 'a' | 'b'): Loop => makeLoop(() => Promise.resolve(++passes[name] && null), 1_000_000)
  const running = (['a', 'b'] as const).map((name) => runLoops(deps, () => [loopOf(name)], ending.signal))
  await waitUntil(() => passes.a === 1 && clock.sleepers === 2)
  assert.equal(passes.b, 0)
  loseLead()
  await waitUntil(() => {
    clock.advance(100)
    return passes.a + passes.b === 2
  })
  ending.abort(new Error('over'))
  await Promise.all(running)
})

test('lost leadership aborts the current pass, and nothing runs after the end', async () => {
  const { deps, loseLead } = makeWorld()
  const ending = new AbortController()
  let seen: AbortSignal | null = null
  const loop = makeLoop(async (signal) => {
    seen = signal
    await new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }))
    return null
  })
  const running = runLoops(deps, () => [loop], ending.signal)
  const first = await waitUntil<AbortSignal>(() => seen ?? false)
  loseLead()
  await waitUntil(() => first.aborted)
  ending.abort(new Error('over'))
  await running
})
