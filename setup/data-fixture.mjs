// Makes test/fixtures/data/NNNN.tar: a small backup of the data of an earlier commit, whose newest migration is NNNN. The test
// test/e2e/earlier-data.test.ts restores each with today's program.
//
//   node setup/data-fixture.mjs COMMIT
//
// It runs the server of that commit with the simulated driver, calls its API, and backs its data folder up with today's program.

import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

const ROOT = join(import.meta.dirname, '..')
const NODE = join(ROOT, '.setup', 'node')
const KEY = 'key-of-the-fixture'

const [commit] = process.argv.slice(2)
if (commit === undefined) throw new Error('usage: node setup/data-fixture.mjs COMMIT')

const work = mkdtempSync(join(tmpdir(), 'sandyard-fixture-'))
chmodSync(work, 0o711)
const tree = join(work, 'tree')
const dataDir = join(work, 'data')
execFileSync('git', ['-C', ROOT, 'worktree', 'add', '--quiet', '--detach', tree, commit])
try {
  symlinkSync(join(ROOT, 'node_modules'), join(tree, 'node_modules'))
  const newest = readdirSync(join(tree, 'migrations')).sort().at(-1).slice(0, 4)
  const server = spawn(NODE, [join(tree, 'src/cli.ts'), 'up'], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: {
      ...process.env,
      SANDYARD_DATA_DIR: dataDir,
      SANDYARD_API_KEY: KEY,
      SANDYARD_DRIVER: 'simulated',
      SANDYARD_PORT: '0',
    },
  })
  const ended = once(server, 'exit')
  try {
    await fill(await urlOf(server))
  } finally {
    server.kill('SIGTERM')
    await ended
  }
  const folder = join(ROOT, 'test/fixtures/data')
  mkdirSync(folder, { recursive: true })
  const target = join(folder, `${newest}.tar`)
  rmSync(target, { force: true })
  const args = [join(ROOT, 'src/cli.ts'), 'backup', target, '--without-images', '--data-dir', dataDir]
  execFileSync(NODE, args, { stdio: 'inherit' })
} finally {
  execFileSync('git', ['-C', ROOT, 'worktree', 'remove', '--force', tree])
  rmSync(work, { recursive: true, force: true })
}

/** Waits until a server says where it listens. */
function urlOf(server) {
  let said = ''
  return new Promise((resolve, reject) => {
    server.stdout.setEncoding('utf8').on('data', (text) => {
      said += text
      const url = /ready on (\S+)/.exec(said)?.[1]
      if (url !== undefined) resolve(url)
    })
    server.once('exit', () => reject(new Error(`the server of ${commit} ended:\n${said}`)))
  })
}

/** Makes a sandbox that runs, one that is stopped, one that is gone, and a volume. */
async function fill(url) {
  const call = async (method, path, body) => {
    const response = await fetch(`${url}/v1${path}`, {
      method,
      headers: {
        authorization: `Bearer ${KEY}`,
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    })
    const text = await response.text()
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`)
    return text === '' ? null : JSON.parse(text)
  }
  await call('POST', '/volumes', { name: 'data' })
  for (const name of ['running', 'stopped', 'gone'])
    await call('POST', '/sandboxes?start=true&wait_for=running', {
      name,
      image: 'localhost/demo',
      labels: { kept: name },
    })
  for (const name of ['stopped', 'gone']) {
    await call('POST', `/sandboxes/by-name/${name}/stop`, {})
    while ((await call('GET', `/sandboxes/by-name/${name}`)).status !== 'stopped') await sleep(50)
  }
  await call('DELETE', '/sandboxes/by-name/gone')
}
