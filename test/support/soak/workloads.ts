/**
 * The clients of a soak. Each runs until the signal, repeats requests while processes are down, and checks the replies.
 */
import { connect } from 'node:net'
import { encodeVolumePath, VOLUME_PATH_HEADER } from '../../../src/contract/volumes/volume-protocol.ts'
import { randomBelow, systemRandom } from '../../../src/lib/random.ts'
import { interruptibleSleep, systemClock } from '../../../src/lib/clock.ts'
import { openRaw } from '../raw-channel.ts'
import { DEMO_IMAGE } from '../sdk.ts'
import type { SoakClient } from './soak-client.ts'
import type { SoakTally } from './tally.ts'

export type SoakDeps = {
  readonly client: SoakClient
  readonly tally: SoakTally
  /** Whether the sandboxes are real, so that commands can run in them. */
  readonly areReal: boolean
  readonly signal: AbortSignal
}

const SIZE = { vcpus: 1, memory_mib: 64, disk_size_mib: 64 }
/** The maximum number of attempts to start a sandbox whose starts fail because workers die. */
const STARTS_MOST = 8

/** Creates, starts, uses, stops and deletes sandboxes, and checks that each happens exactly once. */
export async function runSandboxLifecycles(deps: SoakDeps): Promise<void> {
  for (let n = 0; !deps.signal.aborted; n++) {
    const name = `soak-${systemRandom.bytes(6).toString('hex')}`
    const id = await createOnce(deps, name, n)
    if (deps.areReal) await useIt(deps, id)
    await endIt(deps, id, name)
    deps.tally.count('whole lives of sandboxes')
  }
}

/**
 * Creates one sandbox. Repeats the request with the same idempotency key, and checks that every reply is about that
 * sandbox.
 */
async function createOnce({ client, tally }: SoakDeps, name: string, n: number): Promise<string> {
  const asking = {
    query: { start: 'true', wait_for: 'running', wait_timeout: '20' },
    body: { name, image: DEMO_IMAGE, resources: SIZE, labels: { soak: String(n % 2) } },
    headers: { 'idempotency-key': name },
  }
  const first = await client.requestUntilAnswered('create_sandbox', asking)
  const again = await client.requestUntilAnswered('create_sandbox', asking)
  tally.count('creates repeated with their key')
  const [id, same] = [first, again].map(({ text }) => String(JSON.parse(text).id))
  if (first.status !== 200 || id !== same)
    tally.breach(`${name} was created as ${String(id)} and, with the same key, as ${String(same)}: ${again.text}`)
  return id ?? ''
}

async function statusOf({ client }: SoakDeps, id: string): Promise<string> {
  const { status, text } = await client.requestUntilAnswered('get_sandbox', { params: { sandbox_id: id } })
  return status === 404 ? 'gone' : String(JSON.parse(text).status)
}

/** Runs a command in a sandbox. A broken channel only means that a process died, so the command is tried again. */
async function useIt(deps: SoakDeps, id: string): Promise<void> {
  const { client, tally, signal } = deps
  for (let starts = 0; starts < STARTS_MOST && !signal.aborted;) {
    const status = await statusOf(deps, id)
    if (status === 'failed' || status === 'stopped') {
      starts += 1
      await client.requestUntilAnswered('start_sandbox', { params: { sandbox_id: id }, query: { wait_for: 'running' } })
    } else if (status === 'running') {
      const url = client.urls[randomBelow(systemRandom, client.urls.length)] ?? ''
      const said = await saidBy({ url, key: client.key }, id)
      if (said === null) await systemClock.sleep(PAUSE_MS)
      else if (said === 'hello\n') return tally.count('commands run in sandboxes')
      else tally.breach(`a command of ${id} gave ${JSON.stringify(said)}`)
    } else await systemClock.sleep(PAUSE_MS)
  }
}

const PAUSE_MS = 200
const COMMAND_LIMIT_MS = 10_000

async function saidBy(server: { readonly url: string; readonly key: string }, id: string): Promise<string | null> {
  try {
    const channel = await openRaw(server, id)
    channel.socket.on('error', () => channel.socket.terminate())
    const late = AbortSignal.timeout(COMMAND_LIMIT_MS)
    const text = await Promise.race([
      channel.run('echo', 'hello'),
      channel.closed.then(() => null),
      new Promise<null>((resolve) => late.addEventListener('abort', () => resolve(null), { once: true })),
    ])
    channel.socket.terminate()
    return text
  } catch {
    return null // the upgrade was refused or the connection broke, so the caller tries again
  }
}

async function endIt(deps: SoakDeps, id: string, name: string): Promise<void> {
  const { client, tally } = deps
  const params = { sandbox_id: id }
  const stop = await client.requestUntilAnswered('stop_sandbox', { params })
  if (stop.status !== 200 && stop.status !== 409) tally.breach(`the stop of ${name} answered ${stop.text}`)
  const gone = await client.requestUntilAnswered('delete_sandbox', { params })
  if (gone.status !== 200 && gone.status !== 404) tally.breach(`the deletion of ${name} answered ${gone.text}`)
  const after = await client.requestUntilAnswered('get_sandbox', { params })
  if (after.status !== 404) tally.breach(`${name} was deleted and is ${after.text}`)
}

/** Reads list pages, usage and quotas again and again, as a dashboard does. */
export async function readListPages({ client, tally, signal }: SoakDeps): Promise<void> {
  while (!signal.aborted) {
    for (const query of [{ limit: '20' }, { labels: '{"soak":"1"}' }, { labels: '{"soak":"1","none":"x"}' }])
      await client.tryRequest('list_sandboxes', { query })
    await client.tryRequest('list_events', { query: { limit: '50' } })
    await client.tryRequest('get_quotas')
    await client.tryRequest('get_usage')
    tally.count('pages read')
    await interruptibleSleep(systemClock, PAUSE_MS, signal)
  }
}

/** Creates, uses and revokes keys, and checks that every process refuses a revoked one. */
export async function rotateKeys({ client, tally, signal }: SoakDeps): Promise<void> {
  while (!signal.aborted) {
    const made = await client.requestUntilAnswered('create_api_key', { body: { name: 'soak' } })
    const { id, key } = JSON.parse(made.text)
    const used = await client.requestUntilAnswered('get_org', {}, String(key))
    if (used.status !== 200) tally.breach(`a new key was answered ${String(used.status)}`)
    await client.requestUntilAnswered('revoke_api_key', { params: { api_key_id: String(id) } })
    await systemClock.sleep(KEY_MEMORY_MS)
    for (let asked = 0; asked < client.urls.length * 2; asked++) {
      const { status } = await client.requestUntilAnswered('get_org', {}, String(key))
      if (status !== 401) tally.breach(`a revoked key was answered ${String(status)}`)
    }
    tally.count('keys made, used and revoked')
    await interruptibleSleep(systemClock, PAUSE_MS * 5, signal)
  }
}

/** How long a revoked key may still work: longer than any process caches a key (docs/replicas.md). */
const KEY_MEMORY_MS = 5_000

/** Writes files into the organization's default volume and reads them back. Nothing else writes these files. */
export async function rewriteFiles({ client, tally, signal }: SoakDeps): Promise<void> {
  const volume = await client.requestUntilAnswered('get_default_volume')
  const params = { id: String(JSON.parse(volume.text).id) }
  for (let n = 0; !signal.aborted; n++) {
    const headers = { [VOLUME_PATH_HEADER]: encodeVolumePath(`/soak-${String(n % FILES)}`) }
    const body = Buffer.from(systemRandom.bytes(FILE_BYTES).toString('base64'))
    const wrote = await client.requestUntilAnswered('write_volume_file', { params, headers, body })
    const read = await client.requestUntilAnswered('read_volume_file', { params, headers })
    if (wrote.status !== 200) tally.breach(`a file was not written: ${wrote.text}`)
    else if (read.text !== body.toString())
      tally.breach(`a file of ${String(FILE_BYTES)} bytes was read back otherwise`)
    tally.count('files written and read back')
    await interruptibleSleep(systemClock, PAUSE_MS, signal)
  }
}

const FILES = 10
const FILE_BYTES = 32 * 1024

/** Opens connections that send nothing, half a request or invalid bytes, and keeps them open. */
export async function sendHostileTraffic({ client, tally, signal }: SoakDeps): Promise<void> {
  const nonsense = [
    '',
    'GET / HTTP/1.1\r\n',
    'POST /v1/sandboxes HTTP/1.1\r\ncontent-length: 1000000\r\n\r\n{',
    '\0\0\0\r\n\r\n',
  ]
  while (!signal.aborted) {
    const { hostname, port } = new URL(client.urls[randomBelow(systemRandom, client.urls.length)] ?? '')
    const socket = connect(Number(port), hostname)
    socket.on('error', () => socket.destroy())
    socket.write(nonsense[randomBelow(systemRandom, nonsense.length)] ?? '')
    setTimeout(() => socket.destroy(), HOSTILE_MS).unref()
    tally.count('hostile connections')
    await interruptibleSleep(systemClock, PAUSE_MS / 4, signal)
  }
}

const HOSTILE_MS = 10_000
