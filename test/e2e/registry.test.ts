import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { text } from 'node:stream/consumers'
import { after, before, describe, test } from 'node:test'
import { findHostPrograms, findLibraries } from '../../src/worker/images/demo-contents.ts'
import { call, mustCall } from '../support/api.ts'
import { runMsb } from '../support/msb.ts'
import { startRegistry, type TestRegistry } from '../support/registry.ts'
import { loadSdk, type Sdk } from '../support/sdk.ts'
import { spawnProgram, startServer, whyNoServer, type RealServer } from '../support/server.ts'
import { makeTestImage, type TestEntry, type TestImage } from '../support/test-image.ts'
import { waitUntil } from '../support/wait.ts'

// Real sandboxes with images from a registry on loopback, over plain HTTP.

const CREDENTIAL = { username: 'puller', password: 'password-of-the-puller' } as const

describe('images from a registry', { skip: whyNoServer() }, () => {
  let server: RealServer
  let sdk: Sdk
  let open: TestRegistry
  let closed: TestRegistry
  let programs: readonly TestEntry[]

  before(async () => {
    programs = await programEntries()
    open = await startRegistry()
    closed = await startRegistry({ auth: { mode: 'bearer', ...CREDENTIAL } })
    server = await startServer()
    sdk = await loadSdk(server)
  })
  after(async () => {
    await Promise.all([open.close(), closed.close()])
    await server.close()
  })

  /** An image with a shell, and a file that contains its version. */
  const imageOf = (version: string): Promise<TestImage> =>
    makeTestImage({
      layers: [programs, [{ path: 'etc/version', content: version }]],
      config: { Env: ['PATH=/usr/bin', `FROM_IMAGE=${version}`], WorkingDir: '/etc', Cmd: ['/usr/bin/sleep', '1000'] },
    })

  /** Starts a sandbox of an image and reads the image's version in it. */
  async function versionIn(reference: string, policy: 'if-missing' | 'always' | 'never'): Promise<string> {
    const box = await sdk.Sandbox.builder('versioned').image(reference).pullPolicy(policy).create()
    const output = await box.execWith('sh', (options) => options.args(['-c', 'cat /etc/version; echo "" $FROM_IMAGE']))
    await sdk.Sandbox.remove('versioned')
    return output.stdout() + output.stderr()
  }

  async function failureOf(body: object): Promise<string> {
    const query = { start: 'true', wait_for: 'running' }
    const { id, status, last_failure_message } = await mustCall(server, 'create_sandbox', { query, body })
    assert.equal(status, 'failed')
    await mustCall(server, 'delete_sandbox', { params: { sandbox_id: id } })
    return last_failure_message ?? ''
  }

  test('a tag is pulled once for if_missing, checked each time for always, and not pulled for never', async () => {
    const reference = `${open.address}/team/tool:latest`
    open.push('team/tool', 'latest', await imageOf('one'))
    assert.match(
      await failureOf({ image: reference, pull_policy: 'never' }),
      /never|not.*(there|found|stored|present)/i,
    )
    assert.equal(open.requests.length, 0)
    assert.equal(await versionIn(reference, 'if-missing'), 'one one\n')
    const asked = open.requests.length
    open.push('team/tool', 'latest', await imageOf('two'))
    assert.equal(await versionIn(reference, 'if-missing'), 'one one\n')
    assert.equal(await versionIn(reference, 'never'), 'one one\n')
    assert.equal(open.requests.length, asked, 'what is there was asked for again')
    assert.equal(await versionIn(reference, 'always'), 'two two\n')
    assert.equal(await versionIn(reference, 'if-missing'), 'two two\n')
  })

  test('a digest always names the same image, and existing layers are not pulled again', async () => {
    const first = await imageOf('digest one')
    open.push('team/pinned', 'latest', first)
    open.push('team/pinned', 'latest', await imageOf('digest two'))
    const blobs = open.count('GET /v2/team/pinned/blobs')
    assert.equal(
      await versionIn(`${open.address}/team/pinned@${first.digest}`, 'if-missing'),
      'digest one digest one\n',
    )
    assert.ok(open.count('GET /v2/team/pinned/blobs') - blobs <= 2, 'the layer of programs was there already')
  })

  test('the msb command runs an image by its tag', async () => {
    open.push('team/run', 'v1', await imageOf('run'))
    const result = await runMsb(server, ['run', `${open.address}/team/run:v1`, '--', 'cat', '/etc/version'])
    assert.deepEqual([result.code, result.stdout], [0, 'run'], result.stderr)
  })

  test('a damaged image never runs', async () => {
    const image = await makeTestImage({ layers: [[{ path: 'unique', content: 'x'.repeat(5000) }]] })
    open.push('team/damaged', 'latest', image)
    open.inject({ kind: 'corrupt' }, 20)
    assert.match(await failureOf({ image: `${open.address}/team/damaged` }), /digest|corrupt|sha256/i)
  })

  test('inline credentials give one sandbox access to a private registry', async () => {
    closed.push('own/app', 'latest', await imageOf('closed'))
    const image = `${closed.address}/own/app`
    assert.match(await failureOf({ image }), /401|unauthori|credential|denied/i)
    assert.match(
      await failureOf({ image, registry: { mode: 'inline', ...CREDENTIAL, password: 'wrong' } }),
      /401|unauthori|credential|denied/i,
    )
    const box = await sdk.Sandbox.builder('inline')
      .image(image)
      .registry((registry) => registry.auth({ kind: 'basic', ...CREDENTIAL }))
      .create()
    assert.equal((await box.exec('cat', ['/etc/version'])).stdout(), 'closed')
    await sdk.Sandbox.remove('inline')
    assert.match(
      await failureOf({ image, pull_policy: 'always', registry: { mode: 'anonymous' } }),
      /401|unauthori|credential|denied/i,
    )
  })

  test('after `sandyard registry login`, pulls use the saved credential although no create request names it', async () => {
    closed.push('own/saved', 'latest', await imageOf('saved'))
    const image = `${closed.address}/own/saved`
    const args = ['registry', 'login', closed.address, '--username', CREDENTIAL.username, '--password-stdin']
    const login = spawnProgram(args, { SANDYARD_DATA_DIR: server.dataDir })
    assert.ok(login.stdout !== null && login.stderr !== null && login.stdin !== null)
    login.stdin.end(`${CREDENTIAL.password}\n`)
    const [said, complained] = await Promise.all([text(login.stdout), text(login.stderr)])
    assert.equal(await waitUntil(() => login.exitCode ?? undefined), 0, complained)
    const [, id = ''] = /credential ([0-9a-f-]{36})/.exec(said) ?? []
    assert.equal(await versionIn(image, 'always'), 'saved saved\n')
    const specific = {
      image,
      name: 'specific',
      pull_policy: 'always',
      registry: { mode: 'specific', credential_id: id },
    }
    const query = { start: 'true', wait_for: 'running' }
    const made = await call(server, 'create_sandbox', { query, body: specific })
    assert.ok(!made.isRefusal && made.body.status === 'running', made.text)
    await mustCall(server, 'delete_sandbox', { params: { sandbox_id: made.body.id } })
  })
})

/** A layer with a shell and two programs of this machine. */
async function programEntries(): Promise<readonly TestEntry[]> {
  const { files, links } = await findHostPrograms(['sh', 'cat', 'sleep'])
  const all = [...files, ...(await findLibraries(files))]
  const merged = ['bin', 'lib', 'lib64'].map(
    (name) => ({ path: name, type: 'symlink', target: `usr/${name}` }) as const,
  )
  return [
    ...merged,
    ...all.map(({ source, path }) => ({ path: path.slice(1), content: readFileSync(source), mode: 0o755 })),
    ...links.map(({ path, target }) => ({ path: path.slice(1), type: 'symlink', target }) as const),
    { path: 'tmp', type: 'directory', mode: 0o777 },
  ]
}
