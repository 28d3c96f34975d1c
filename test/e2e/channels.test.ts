import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { after, before, describe, test, type TestContext } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { call, mustCall } from '../support/api.ts'
import { dialRaw, openRaw, refusalOf, type RawChannel } from '../support/raw-channel.ts'
import { DEMO_IMAGE, loadSdk, type Sdk } from '../support/sdk.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'

const MIB = 1024 * 1024
const LIMIT_MS = 60_000
/**
 * The most bytes that may be on their way while a peer is stopped: in the kernel, the worker and the server. Measured: 4 to
 * 7 MiB (2026-11).
 */
const BUFFERED_MIB = 48

// Command channels over HTTP into a real sandbox, with a client that can stop reading.

describe('command channels', { skip: whyNoServer() }, () => {
  let server: RealServer
  let sdk: Sdk
  let id: string

  before(async () => {
    server = await startServer({ SANDYARD_CHANNELS_PER_SANDBOX: '3', SANDYARD_CHANNELS_PER_ORG: '4' })
    sdk = await loadSdk(server)
    id = await newSandbox('channels')
  })
  after(() => server.close())

  async function newSandbox(name: string): Promise<string> {
    await sdk.Sandbox.builder(name).image(DEMO_IMAGE).create()
    return (await mustCall(server, 'get_sandbox_by_name', { params: { name } })).id
  }

  const hangUp = async (channels: readonly RawChannel[]): Promise<void> => {
    for (const { socket } of channels) socket.terminate()
    await waitUntil(async () => /^sandyard_open_channels 0$/m.test(await metrics()), LIMIT_MS)
  }
  const metrics = async (): Promise<string> => (await fetch(`${server.url}/metrics`)).text()

  test('a client that stops reading blocks the process without filling the memory of the server; later everything arrives in order', async (t) => {
    const [writer, observer] = await Promise.all([openRaw(server, id), openRaw(server, id)])
    let next = 1
    let rest = ''
    let arrived = 0
    const session = writer.exec('seq', ['1', '1000000000'], (data) => {
      arrived += data.length
      const lines = (rest + data.toString('latin1')).split('\n')
      rest = lines.pop() ?? ''
      for (const line of lines) {
        if (line !== String(next)) throw new Error(`${line} came in place of ${String(next)}`)
        next += 1
      }
    })
    const pid = await writer.pidOf(session)
    await waitUntil(() => next > 10_000, LIMIT_MS)
    const written = async (): Promise<number> =>
      Number(/^wchar: (\d+)$/m.exec(await observer.run('cat', `/proc/${String(pid)}/io`))?.[1])
    writer.socket.pause()
    const stopped = await untilStill(written)
    assert.ok(stopped > 0)
    assertFew(t, stopped - arrived)
    const seen = next
    writer.socket.resume()
    await waitUntil(async () => (await written()) > stopped + 16 * MIB, LIMIT_MS)
    assert.ok(next > seen)
    await hangUp([writer, observer])
  })

  test('a process that does not read its input blocks the client without filling memory; later everything arrives', async (t) => {
    const [writer, observer] = await Promise.all([openRaw(server, id), openRaw(server, id)])
    let said = ''
    const session = writer.exec('sh', ['-c', 'while [ ! -e /tmp/go ]; do sleep 0.1; done; sha256sum'], (data) => {
      said += data.toString()
    })
    await writer.pidOf(session)
    const hash = createHash('sha256')
    const total = 192
    for (let piece = 0; piece < total; piece++) {
      const data = Buffer.alloc(MIB, piece)
      hash.update(data)
      writer.send(session, 'core.exec.stdin', { data })
    }
    writer.send(session, 'core.exec.stdin', { data: Buffer.alloc(0) })
    const unsent = await untilStill(() => Promise.resolve(writer.socket.bufferedAmount))
    assertFew(t, total * MIB - unsent)
    await observer.run('touch', '/tmp/go')
    assert.equal(await writer.exitOf(session, LIMIT_MS), 0)
    assert.equal(said.split(' ')[0], hash.digest('hex'))
    await hangUp([writer, observer])
  })

  test('a channel beyond the limit of a sandbox or an organization is refused before the upgrade, and accepted when another one closes', async () => {
    const other = await newSandbox('another')
    const open = await Promise.all([openRaw(server, id), openRaw(server, id), openRaw(server, id)])
    const full = await refusalOf(dialRaw(server, id))
    assert.deepEqual([full.status, full.retryAfter, full.error.code], [429, '1', 'rate_limited'])
    const { how_to_change, ...details } = full.error.details
    assert.deepEqual(details, { limit: 'channels_per_sandbox', max: 3, current: 3 })
    assert.match(how_to_change, /SANDYARD_CHANNELS_PER_SANDBOX/)
    const elsewhere = await openRaw(server, other)
    const { error } = await refusalOf(dialRaw(server, other))
    assert.deepEqual([error.details.limit, error.details.max, error.details.current], ['channels_per_org', 4, 4])
    await hangUp([...open, elsewhere])
    await hangUp([await openRaw(server, other)])
  })

  test('a key that is revoked or expires ends its own channels, with the reason, and no others', async () => {
    const expires_at = new Date(systemClock.now().getTime() + 4_000).toISOString()
    const made = async (name: string, more: object = {}): Promise<{ readonly id: string; readonly key: string }> =>
      JSON.parse((await call(server, 'create_api_key', { body: { name, scopes: ['write'], ...more } })).text)
    const [revoked, expiring] = [await made('revoked'), await made('expiring', { expires_at })]
    const own = await openRaw(server, id)
    const [first, second] = [
      await openRaw({ url: server.url, key: revoked.key }, id),
      await openRaw({ url: server.url, key: expiring.key }, id),
    ]
    await mustCall(server, 'revoke_api_key', { params: { api_key_id: revoked.id } })
    assert.deepEqual(await first.closed, { code: 4401, reason: 'the API key was revoked' })
    assert.deepEqual(await second.closed, { code: 4401, reason: 'the API key expired' })
    assert.equal(await own.run('echo', 'still here'), 'still here\n')
    await hangUp([own])
    assert.match(await metrics(), /^sandyard_channel_ends_total\{why="api_key_revoked"\} 1$/m)
  })

  test('a channel ends with its sandbox, and its reason says whether the sandbox stopped or was deleted', async () => {
    const name = 'to-be-ended'
    const box = await newSandbox(name)
    const stopping = await openRaw(server, box)
    await mustCall(server, 'stop_sandbox', { params: { sandbox_id: box } })
    assert.deepEqual(await stopping.closed, { code: 4410, reason: 'the sandbox stopped' })
    await call(server, 'start_sandbox', { params: { sandbox_id: box }, query: { wait_for: 'running' } })
    const deleting = await openRaw(server, box)
    await mustCall(server, 'delete_sandbox', { params: { sandbox_id: box } })
    assert.deepEqual(await deleting.closed, { code: 4410, reason: 'the sandbox was deleted' })
  })

  test('bytes that are not frames end the channel with 1008, and text ends it with 1003', async () => {
    const [framing, text] = await Promise.all([openRaw(server, id), openRaw(server, id)])
    framing.socket.send(Buffer.alloc(64, 0xff))
    text.socket.send('text')
    assert.equal((await framing.closed).code, 1008)
    assert.equal((await text.closed).code, 1003)
  })

  test('a sandbox in use outlives its idle timeout, and is stopped as idle once it is unused', async () => {
    const box = await sdk.Sandbox.builder('idle').image(DEMO_IMAGE).idleTimeout(3).create()
    // Time is what this tests: the pauses must be shorter than the timeout of 3 s, and the whole longer.
    const fromMs = systemClock.monotonicMs()
    while (systemClock.monotonicMs() - fromMs < 7_000) {
      assert.equal((await box.exec('true')).code, 0)
      await systemClock.sleep(1_000)
    }
    // A running process counts as use, even without input and output.
    assert.equal((await box.exec('sleep', ['5'])).code, 0)
    const stopped = await waitUntil(async () => {
      const body = await mustCall(server, 'get_sandbox_by_name', { params: { name: 'idle' } })
      return (body.status === 'stopped' || body.status === 'failed') && body
    }, LIMIT_MS)
    assert.equal(stopped.status, 'stopped')
    const { data } = await mustCall(server, 'list_events', { query: { event_type: 'sandbox_stopped' } })
    const event = data.find(({ payload }) => Object(payload).sandbox_id === stopped.id)
    assert.equal(Object(event?.payload).cause, 'idle_timeout')
  })
})

function assertFew(t: TestContext, bytes: number): void {
  t.diagnostic(`${String(Math.round(bytes / MIB))} MiB are on their way`)
  assert.ok(bytes < BUFFERED_MIB * MIB, `${String(bytes)} bytes are on their way`)
}

/** Resolves with a number once it has not changed for a second. */
async function untilStill(read: () => Promise<number>): Promise<number> {
  let last = await read()
  let sinceMs = systemClock.monotonicMs()
  return await waitUntil(async () => {
    const now = await read()
    if (now !== last) sinceMs = systemClock.monotonicMs()
    last = now
    return systemClock.monotonicMs() - sinceMs > 1_000 && now
  }, LIMIT_MS)
}
