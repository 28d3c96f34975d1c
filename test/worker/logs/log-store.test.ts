import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { appendFileSync, existsSync, mkdirSync, readdirSync, rmSync, statSync, utimesSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, test } from 'node:test'
import type { LogEntry, LogPosition } from '../../../src/contract/streams/log-protocol.ts'
import { asId, type SandboxId } from '../../../src/domain/ids.ts'
import { systemClock } from '../../../src/lib/clock.ts'
import type { SandboxLogs } from '../../../src/worker/logs/logs.ts'
import { EVERYTHING, LOG_LIMITS, makeTestLogs, readAll, textOf } from '../../support/logs.ts'
import { openTargets } from '../../support/open-files.ts'
import { makeTestClock } from '../../support/test-clock.ts'
import { waitUntil } from '../../support/wait.ts'

const BOX = asId<SandboxId>('box')
const WRITER = join(import.meta.dirname, '../../support/log-writer-process.ts')
const NEVER = new AbortController().signal
let logs: SandboxLogs
let dir: string
let remove: () => Promise<void>

describe("a sandbox's log", { timeout: 120_000 }, () => {
  beforeEach(async () => {
    ;({ logs, dir, remove } = await makeTestLogs())
  })
  afterEach(() => remove())

  test('yields what was written, line by line, with source and time, in order', async () => {
    const from = systemClock.now().toISOString()
    logs.writerOf(BOX).system('started')
    write(logs, 'stdout', 'one\ntwo\n')
    write(logs, 'stderr', 'oh\n')
    write(logs, 'output', '$ ls\r\nno line feed')
    const entries = await readAll(logs, BOX)
    assert.deepEqual(
      entries.map(({ source, text }) => [source, text]),
      [
        ['system', 'started\n'],
        ['stdout', 'one\n'],
        ['stdout', 'two\n'],
        ['stderr', 'oh\n'],
        ['output', '$ ls\r\n'],
        ['output', 'no line feed'],
      ],
    )
    for (const { ts } of entries) assert.ok(ts >= from && ts <= systemClock.now().toISOString())
  })

  test('is empty for a sandbox that never logged', async () => {
    assert.deepEqual(await readAll(logs, BOX), [])
    assert.deepEqual(await readAll(logs, BOX, { follows: true, tail: 5 }), [])
    assert.deepEqual(readdirSync(dir), [])
  })

  test('is stored in a folder that only the worker can access', async () => {
    logs.writerOf(BOX).system('started')
    await readAll(logs, BOX)
    assert.equal(statSync(join(dir, BOX)).mode & 0o777, 0o700)
    for (const name of readdirSync(join(dir, BOX))) assert.equal(statSync(join(dir, BOX, name)).mode & 0o777, 0o600)
  })

  test('yields an unfinished line after a moment', async () => {
    logs.writerOf(BOX).stream('output').write(Buffer.from('$ '))
    await waitUntil(async () => textOf(await readAll(logs, BOX)) === '$ ')
  })

  test('can be filtered by source, time, position and count from its end', async () => {
    for (let line = 0; line < 5_000; line++) write(logs, line % 2 === 0 ? 'stdout' : 'stderr', `${String(line)}\n`)
    const all = await readAll(logs, BOX)
    assert.equal(all.length, 5_000)
    const middle = all[2_499] ?? assert.fail()
    const errors = await readAll(logs, BOX, { sources: ['stderr'], after: middle.position, tail: 3 })
    assert.deepEqual(errors, all.slice(-5).filter(({ source }) => source === 'stderr').slice(-3)) // prettier-ignore
    assert.deepEqual(await readAll(logs, BOX, { tail: 4_000 }), all.slice(1_000))
    assert.deepEqual(await readAll(logs, BOX, { tail: 9_000 }), all)
    assert.deepEqual(await readAll(logs, BOX, { tail: 0 }), [])
    const { since, until } = { since: all[0]?.ts ?? '', until: all.at(-1)?.ts ?? '' }
    assert.deepEqual(await readAll(logs, BOX, { since, until }), all.filter(({ ts }) => ts >= since && ts < until)) // prettier-ignore
    assert.deepEqual(await readAll(logs, BOX, { until: since }), [])
  })

  test('loses its oldest entries at its limit, and always keeps at least three quarters', async () => {
    await remove()
    const limit = 64 * 1024
    ;({ logs, dir, remove } = await makeTestLogs({ limits: { sandboxBytes: limit } }))
    for (let line = 0; line < 5_000; line++) write(logs, 'stdout', `${String(line).padStart(8, '0')}\n`)
    const kept = await readAll(logs, BOX)
    const bytes = readdirSync(join(dir, BOX)).reduce((sum, name) => sum + statSync(join(dir, BOX, name)).size, 0)
    assert.ok(bytes <= limit && bytes > (limit * 3) / 4 - 1_000, String(bytes))
    assert.equal(textOf(kept.slice(-1)), '00004999\n')
    assert.deepEqual(kept.map(({ text }) => Number(text)), Array.from(kept, (_, index) => 5_000 - kept.length + index)) // prettier-ignore
    const gone: LogPosition = { generation: 1, offset: 40 }
    assert.deepEqual(await readAll(logs, BOX, { after: gone }), kept)
    assert.equal((await readAll(logs, BOX, { tail: 1_000_000 })).length, kept.length)
  })

  test('can be followed until the last run is over', async () => {
    const writer = logs.writerOf(BOX)
    writer.openRun()
    writer.system('first')
    const seen: string[] = []
    const following = follow(seen)
    await waitUntil(() => seen.length === 1)
    write(logs, 'stdout', 'second\n')
    await waitUntil(() => seen.length === 2)
    assert.equal(logs.isLive(BOX), true)
    writer.system('third')
    writer.closeRun()
    await following
    assert.deepEqual(seen, ['first\n', 'second\n', 'third\n'])
    assert.equal(logs.isLive(BOX), false)
  })

  test('can be followed until a given time', async () => {
    logs.writerOf(BOX).openRun()
    const until = new Date(systemClock.now().getTime() + 300).toISOString()
    assert.deepEqual(await readAll(logs, BOX, { follows: true, until }), [])
  })

  test('can be followed by a reader that leaves at any time, with its abort reason', async () => {
    logs.writerOf(BOX).openRun()
    const leave = new AbortController()
    const following = Array.fromAsync(logs.read(BOX, { ...EVERYTHING, follows: true }, leave.signal))
    leave.abort(new Error('I leave'))
    await assert.rejects(following, /I leave/)
  })

  test('continues at its oldest remaining entry for a reader whose next entry was deleted', async () => {
    await remove()
    ;({ logs, dir, remove } = await makeTestLogs({ limits: { sandboxBytes: 64 * 1024 } }))
    write(logs, 'stdout', 'early\n')
    const reading = logs.read(BOX, { ...EVERYTHING, follows: true }, NEVER)[Symbol.asyncIterator]()
    logs.writerOf(BOX).openRun()
    assert.equal((await reading.next()).value?.text, 'early\n')
    for (let line = 0; line < 5_000; line++) write(logs, 'stdout', `${String(line)}\n`)
    logs.writerOf(BOX).closeRun()
    const kept = (await readAll(logs, BOX)).map(({ text }) => text)
    const rest: string[] = []
    for (let next = await reading.next(); next.done !== true; next = await reading.next()) rest.push(next.value.text)
    assert.deepEqual(rest, kept)
  })

  test('drops output that comes too fast, says how much is missing, and takes more later', async () => {
    const stream = logs.writerOf(BOX).stream('stdout')
    const chunk = Buffer.from('y\n'.repeat(32 * 1024))
    const sentBytes = 640 * chunk.length
    for (let sent = 0; sent < sentBytes; sent += chunk.length) stream.write(chunk)
    const told = async (): Promise<readonly LogEntry[]> => await readAll(logs, BOX, { sources: ['system'] })
    await waitUntil(async () => (await told()).length > 0)
    stream.write(Buffer.from('still here\n'))
    stream.end()
    await waitUntil(async () => textOf(await readAll(logs, BOX, { tail: 1 })) === 'still here\n')
    const lostBytes = (await told()).reduce((sum, { text }) => sum + Number.parseInt(text, 10), 0)
    const keptBytes = textOf(await readAll(logs, BOX, { sources: ['stdout'] })).length - 'still here\n'.length
    assert.equal(keptBytes + lostBytes, sentBytes)
  })

  test('that cannot be written causes no errors, and reports the loss once it can be written again', async () => {
    logs.writerOf(BOX).system('before')
    await readAll(logs, BOX)
    await logs.close()
    rmSync(join(dir, BOX), { recursive: true })
    appendFileSync(join(dir, BOX), 'not a folder')
    ;({ logs } = await makeTestLogs({ dir }))
    write(logs, 'stdout', 'lost\n')
    assert.deepEqual(await readAll(logs, BOX), [])
    rmSync(join(dir, BOX))
    await waitUntil(async () => textOf(await readAll(logs, BOX)).startsWith('5 bytes of output were not kept'))
    await logs.close()
  })

  test('makes no file for the worker’s own first lines if it is deleted soon, and otherwise within seconds', async () => {
    logs.writerOf(BOX).openRun()
    logs.writerOf(BOX).system('started')
    logs.writerOf(BOX).closeRun()
    assert.equal(logs.isLive(BOX), true)
    await logs.discard(BOX)
    assert.deepEqual(readdirSync(dir), [])
    assert.equal(textOf(await readAll(logs, BOX)), '')
    logs.writerOf(BOX).system('started again')
    await waitUntil(() => existsSync(join(dir, BOX)))
    assert.equal(textOf(await readAll(logs, BOX)), 'started again\n')
  })

  test('writes the worker’s own first lines with the first output', async () => {
    const clock = makeTestClock(systemClock.now()) // time stands still, so no pause ends by itself
    const { logs: still } = await makeTestLogs({ dir, clock })
    still.writerOf(BOX).system('started')
    write(still, 'stdout', 'hello\n')
    await waitUntil(() => existsSync(join(dir, BOX)))
    assert.equal(textOf(await readAll(still, BOX)), 'started\nhello\n')
    await still.close()
  })

  test('whose deletion failed stays in use, and is deleted the next time', async () => {
    await remove()
    appendFileSync(dir, 'not a folder')
    await assert.rejects(logs.discard(BOX), { code: 'ENOTDIR' })
    rmSync(dir)
    mkdirSync(dir)
    logs.writerOf(BOX).system('still here')
    assert.equal(textOf(await readAll(logs, BOX)), 'still here\n')
    await logs.discard(BOX)
    assert.equal(existsSync(join(dir, BOX)), false)
  })

  test('whose files were deleted by someone else starts again', async () => {
    const clock = makeTestClock(systemClock.now())
    const { logs: aging } = await makeTestLogs({ dir, clock })
    const writer = aging.writerOf(BOX)
    writer.openRun()
    writer.system('before')
    await readAll(aging, BOX)
    // The store closes files that are idle for a while, and opens them again by name.
    const openFiles = (): number => openTargets().filter((target) => target.startsWith(join(dir, BOX))).length
    assert.equal(openFiles(), 1)
    await waitUntil(() => {
      clock.advance(5_000)
      return openFiles() === 0
    })
    rmSync(join(dir, BOX), { recursive: true })
    await waitUntil(async () => {
      writer.system('after')
      clock.advance(1_000)
      return textOf(await readAll(aging, BOX)).endsWith('after\n')
    })
    await aging.close()
  })

  test('of a killed worker is read up to its last complete entry, and continues after it', async () => {
    const worker = spawn(process.execPath, [WRITER, dir, BOX], { stdio: ['ignore', 'pipe', 'inherit'] })
    await once(worker.stdout, 'data')
    worker.kill('SIGKILL')
    await once(worker, 'exit')
    const [last = ''] = readdirSync(join(dir, BOX)).toSorted().slice(-1)
    appendFileSync(join(dir, BOX, last), '{"s":"o","t":17637') // as if the last write had been interrupted
    const { logs: next } = await makeTestLogs({ dir })
    const kept = await readAll(next, BOX)
    assert.ok(kept.length >= 1_000, String(kept.length))
    assert.deepEqual(kept.map(({ text }) => text), Array.from(kept, (_, line) => `${String(line)}\n`)) // prettier-ignore
    write(next, 'stdout', 'goes on\n')
    assert.equal(textOf(await readAll(next, BOX, { after: kept.at(-1)?.position ?? null })), 'goes on\n')
    assert.equal(textOf(await readAll(next, BOX, { tail: 2 })), `${kept.at(-1)?.text ?? ''}goes on\n`)
    await next.close()
  })

  test('is gone after a discard, and its followers end', async () => {
    logs.writerOf(BOX).openRun()
    logs.writerOf(BOX).system('here')
    const seen: string[] = []
    const following = follow(seen)
    await waitUntil(() => seen.length === 1)
    await logs.discard(BOX)
    await logs.discard(BOX)
    await following
    assert.equal(existsSync(join(dir, BOX)), false)
    assert.deepEqual(await readAll(logs, BOX), [])
  })

  test('of a run that ended long ago is deleted; a recent one, or one in use, is kept', async () => {
    const clock = makeTestClock(systemClock.now())
    const { logs: aging } = await makeTestLogs({ dir, clock })
    const names = ['old', 'young', 'running'].map((name) => asId<SandboxId>(name))
    for (const name of names) {
      aging.writerOf(name).system('here')
      await readAll(aging, name)
    }
    aging.writerOf(asId<SandboxId>('running')).openRun()
    const old = new Date(systemClock.now().getTime() - LOG_LIMITS.retentionMs)
    for (const name of ['old', 'running'])
      for (const file of readdirSync(join(dir, name))) utimesSync(join(dir, name, file), old, old)
    await waitUntil(() => {
      clock.advance(5_000)
      return !existsSync(join(dir, 'old'))
    }, 60_000)
    assert.deepEqual(readdirSync(dir).toSorted(), ['running', 'young'])
    await aging.close()
  })
})

function write(to: SandboxLogs, source: 'stdout' | 'stderr' | 'output', text: string): void {
  const stream = to.writerOf(BOX).stream(source)
  stream.write(Buffer.from(text))
  stream.end()
}

async function follow(seen: string[]): Promise<void> {
  for await (const { text } of logs.read(BOX, { ...EVERYTHING, follows: true }, NEVER)) seen.push(text)
}
