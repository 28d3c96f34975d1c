import assert from 'node:assert/strict'
import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, suite, test } from 'node:test'
import { systemClock } from '../../src/lib/clock.ts'
import { findLeftovers } from '../support/leftovers.ts'
import { copyProject, makeBareMachine, PACKAGE_LIMIT_MS, startPackagedServer, whyNoPackages, type BareMachine } from '../support/packages.ts' // prettier-ignore
import { TIMEOUT_FACTOR } from '../support/timeout-factor.ts'

/** From `npm install` with an empty cache to the first running sandbox, on a quiet machine with two cores. */
const FIRST_SANDBOX_LIMIT_MS = 60_000

suite('the npm package on a machine with Node 18', { skip: whyNoPackages(), timeout: PACKAGE_LIMIT_MS }, () => {
  let packer: BareMachine
  let tarball = ''

  before(async () => {
    packer = await makeBareMachine()
    const project = join(packer.folder, 'project')
    await copyProject(project)
    await packer.run('npm', ['pack', '--pack-destination', packer.folder], project)
    const name = readdirSync(packer.folder).find((file) => file.endsWith('.tgz')) ?? assert.fail('npm packed nothing')
    tarball = join(packer.folder, name)
    assert.deepEqual(
      readdirSync(project).filter((file) => ['dist', 'npm-shrinkwrap.json'].includes(file)),
      [],
      'packing leaves nothing behind',
    )
  })
  after(() => packer.close())

  test('`npm install -g` leads to a running sandbox within a minute, and installs no package for development', async (t) => {
    await using machine = disposable(await makeBareMachine())
    const fromMs = systemClock.monotonicMs()
    await machine.run('npm', ['install', '-g', tarball])
    const installedMs = systemClock.monotonicMs()
    await using server = stoppable(await startPackagedServer(machine, 'sandyard', ['up']))
    const readyMs = systemClock.monotonicMs()
    assert.equal(await createSandbox(server), 'running')
    const endMs = systemClock.monotonicMs()
    t.diagnostic(
      `npm install -g ${seconds(installedMs - fromMs)}, ready after ${seconds(readyMs - fromMs)}, first sandbox after ${seconds(endMs - fromMs)}`,
    )
    assert.ok(endMs - fromMs < FIRST_SANDBOX_LIMIT_MS * TIMEOUT_FACTOR, seconds(endMs - fromMs))
    const modules = join(machine.folder, 'prefix/lib/node_modules/sandyard/node_modules')
    const names = readdirSync(modules, { recursive: true }).map(String)
    for (const name of ['typescript', 'oxlint', 'prettier', 'knip', 'fast-check'])
      assert.ok(!names.includes(name), name)
    assert.ok(names.includes('@superradcompany/microsandbox-linux-x64-gnu/bin/msb'), 'npm of Node 18 leaves it out')
  })

  test('`npx sandyard up` runs a sandbox', async () => {
    await using machine = disposable(await makeBareMachine())
    const command = ['--yes', `--package=${tarball}`, 'sandyard']
    await using server = stoppable(await startPackagedServer(machine, 'npx', [...command, 'up']))
    assert.equal(await createSandbox(server), 'running')
    const version = await machine.run('npx', [...command, '--version'])
    assert.match(tarball, new RegExp(`sandyard-${RegExp.escape(version.trim())}\\.tgz$`))
  })
})

type Server = Awaited<ReturnType<typeof startPackagedServer>>

async function createSandbox(server: Server): Promise<unknown> {
  const body = { name: 'first', image: 'localhost/demo' }
  const sandbox = await server.call('/v1/sandboxes?start=true&wait_for=running', body)
  assert.ok(typeof sandbox === 'object' && sandbox !== null && 'status' in sandbox)
  return sandbox.status
}

function disposable(machine: BareMachine): BareMachine & AsyncDisposable {
  return { ...machine, [Symbol.asyncDispose]: () => machine.close() }
}

function stoppable(server: Server): Server & AsyncDisposable {
  return {
    ...server,
    async [Symbol.asyncDispose]() {
      await server.stop()
      assert.deepEqual(await findLeftovers(server.dataDir), [])
    },
  }
}

const seconds = (ms: number): string => `${(ms / 1000).toFixed(1)} s`
