import assert from 'node:assert/strict'
import { spawn, type ChildProcess } from 'node:child_process'
import { chown, mkdir, mkdtemp, chmod, readFile, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { after, before, suite, test } from 'node:test'
import { runCommand, tryCommand } from '../../src/lib/run-command.ts'
import { findMissingPrograms } from '../../src/worker/drivers/shared/machine.ts'
import { freePort } from '../support/free-port.ts'
import { copyProject, PACKAGE_LIMIT_MS, whyNoPackages } from '../support/packages.ts'
import { waitUntil } from '../support/wait.ts'

// The Debian package, and the container image that is made from it. The image runs under crun, without a daemon.

const missing = findMissingPrograms(['dpkg-deb', 'mmdebstrap', 'umoci', 'crun'])
const whyNot = whyNoPackages() || (missing.length > 0 ? `missing programs: ${missing.join(', ')}` : false)
/** The user of the image that a server without privileges has. */
const SERVER_USER = 65532
const KEY = 'test-key-of-the-first-organization'
/** Every capability that this process has, as a privileged container gets them. */
const CAPABILITY_NAMES = 'capsh --decode=$(awk \'/CapEff/{print $2}\' /proc/self/status) | sed "s/.*=//"'

suite('the container image', { skip: whyNot, timeout: 2 * PACKAGE_LIMIT_MS }, () => {
  let folder = ''

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'sandyard-image-test-'))
    await chmod(folder, 0o711)
    const project = join(folder, 'project')
    await copyProject(project)
    const script = (...args: string[]): Promise<unknown> =>
      runCommand('node', args, { cwd: project, timeoutMs: PACKAGE_LIMIT_MS })
    await script('packaging/deb/make-deb.mjs', folder)
    const deb = (await readdir(folder)).find((name) => name.endsWith('.deb')) ?? assert.fail('no package was made')
    await script('packaging/container/make-image.mjs', join(folder, 'layout'), join(folder, deb))
    await runCommand('umoci', ['unpack', `--image=${join(folder, 'layout')}:latest`, join(folder, 'bundle')], {
      timeoutMs: PACKAGE_LIMIT_MS,
    })
  })
  after(() => rm(folder, { recursive: true, force: true }))

  test('the Debian package has the units and protects its settings', async () => {
    const deb = (await readdir(folder)).find((name) => name.endsWith('.deb')) ?? assert.fail()
    const { stdout } = await runCommand(
      'sh',
      ['-c', 'dpkg-deb --contents "$0" | grep -v node_modules', join(folder, deb)],
      {
        timeoutMs: PACKAGE_LIMIT_MS,
      },
    )
    for (const unit of ['sandyard', 'sandyard-server', 'sandyard-worker'])
      assert.match(stdout, new RegExp(`-rw-r--r-- root/root .* ./usr/lib/systemd/system/${unit}\\.service`))
    assert.match(stdout, / \.\/usr\/share\/sandyard\/prometheus\/sandyard\.rules\.yml/)
    assert.match(stdout, / \.\/usr\/share\/sandyard\/grafana\/sandyard\.json/)
    assert.match(stdout, /-rw------- root\/root .* \.\/etc\/sandyard\/server\.env/)
  })

  test('`serve` runs without a single privilege, on a read-only root', async () => {
    await using server = await startContainer(folder, 'serve', { isPrivileged: false })
    const response = await fetch(`${server.url}/readyz`)
    assert.deepEqual(await response.json(), { status: 'ready', reasons: [] })
    assert.match(await server.run('cat', '/proc/1/status'), /^CapBnd:\s0+$/m)
  })

  test('`up` with the privileges of a worker runs a sandbox', async () => {
    await using server = await startContainer(folder, 'up', { isPrivileged: true })
    const response = await fetch(`${server.url}/v1/sandboxes?start=true&wait_for=running`, {
      method: 'POST',
      headers: { authorization: `Bearer ${KEY}`, 'content-type': 'application/json' },
      body: JSON.stringify({ name: 'first', image: 'localhost/demo' }),
    })
    const { status } = (await response.json()) as { readonly status: string }
    assert.equal(status, 'running', server.output())
  })

  test('`worker` is the same program', async () => {
    const args = ['rootfs', '/usr/bin/sandyard', 'worker', '--help']
    const { stdout } = await runCommand('chroot', args, { cwd: join(folder, 'bundle'), timeoutMs: PACKAGE_LIMIT_MS })
    assert.match(stdout, /--join/)
  })
})

type Container = AsyncDisposable & {
  readonly url: string
  output(): string
  /** Runs a program in the container, and resolves with its standard output. */
  run(...args: string[]): Promise<string>
}

/** Starts a command of the image in a container that shares this machine's network. It ends with SIGTERM. */
async function startContainer(
  folder: string,
  command: string,
  { isPrivileged }: { readonly isPrivileged: boolean },
): Promise<Container> {
  const id = `sandyard-image-${command}-${String(process.pid)}`
  const bundle = join(folder, command)
  const data = join(folder, `data-${command}`)
  await mkdir(bundle)
  await mkdir(data, { mode: 0o711 })
  if (!isPrivileged) await chown(data, SERVER_USER, SERVER_USER)
  const port = await freePort()
  const given = JSON.parse(await readFile(join(folder, 'bundle/config.json'), 'utf8')) as ImageConfig
  const config = await containerConfig(given, {
    command,
    data,
    port,
    isPrivileged,
    rootfs: join(folder, 'bundle/rootfs'),
    bundle,
  })
  await writeFile(join(bundle, 'config.json'), JSON.stringify(config))
  // crun refuses cgroups in hybrid mode, so it runs in a mount namespace without those of version 2. The container gets
  // them all: without that mount, the worker would write into the plain folder beneath it.
  const hide = 'mount --rbind /sys "$2" && { umount /sys/fs/cgroup/unified 2>/dev/null || true; }'
  const start = `${hide} && exec crun --cgroup-manager=disabled run -b "$0" "$1"`
  await mkdir(join(bundle, 'sys'))
  const child = spawn('unshare', ['-m', '--propagation=slave', 'sh', '-c', start, bundle, id, join(bundle, 'sys')], {
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const output = collect(child)
  const hasEnded = (): boolean => child.exitCode !== null || child.signalCode !== null
  const crun = (...args: string[]) => tryCommand('crun', args, { timeoutMs: 30_000 })
  const container: Container = {
    url: `http://127.0.0.1:${String(port)}`,
    output,
    run: async (...args) => (await crun('--cgroup-manager=disabled', 'exec', id, ...args)).stdout,
    async [Symbol.asyncDispose]() {
      await crun('kill', id, 'TERM')
      await waitUntil(hasEnded, 60_000, output).catch(async (error: unknown) => {
        await crun('kill', id, 'KILL')
        throw error
      })
    },
  }
  try {
    await waitUntil(() => hasEnded() || output().includes('export MSB_API_KEY'), PACKAGE_LIMIT_MS, output)
    assert.ok(!hasEnded(), output())
    return container
  } catch (error) {
    await container[Symbol.asyncDispose]()
    throw error
  }
}

function collect(child: ChildProcess): () => string {
  let text = ''
  for (const stream of [child.stdout, child.stderr])
    stream?.setEncoding('utf8').on('data', (part: string) => {
      text += part
    })
  return () => text
}

/** The part of the configuration that umoci makes of the image and that this test uses. */
type ImageConfig = {
  readonly ociVersion: string
  readonly process: { readonly args: readonly string[]; readonly env: readonly string[]; readonly cwd: string }
}

type ContainerOptions = {
  readonly command: string
  readonly data: string
  readonly port: number
  readonly isPrivileged: boolean
  readonly rootfs: string
  readonly bundle: string
}

/** The configuration of a container. docs/guide/operations.md lists the privileges of a worker. */
async function containerConfig(
  given: ImageConfig,
  { command, data, port, isPrivileged, rootfs, bundle }: ContainerOptions,
): Promise<object> {
  assert.deepEqual(given.process.args.at(-1), 'up', 'the default command of the image')
  const names = (await runCommand('bash', ['-c', CAPABILITY_NAMES], { timeoutMs: 10_000 })).stdout.trim().toUpperCase()
  const all = names.split(',')
  const tmpfs = (destination: string, mode: string) => ({
    destination,
    type: 'tmpfs',
    source: 'tmpfs',
    options: [`mode=${mode}`],
  })
  const bind = (path: string, source = path) => ({ destination: path, type: 'bind', source, options: ['rbind', 'rw'] })
  return {
    ociVersion: given.ociVersion,
    hostname: 'sandyard',
    process: {
      ...given.process,
      terminal: false,
      args: [...given.process.args.slice(0, -1), command],
      env: [
        ...given.process.env,
        'SANDYARD_HOST=127.0.0.1',
        // Names of cgroups depend on this path. An installation of this machine may have the default path.
        `SANDYARD_DATA_DIR=/var/lib/sandyard/${basename(data)}-${String(port)}`,
        `SANDYARD_PORT=${String(port)}`,
        `SANDYARD_API_KEY=${KEY}`,
        'SANDYARD_SHUTDOWN=stop',
      ],
      user: isPrivileged ? { uid: 0, gid: 0 } : { uid: SERVER_USER, gid: SERVER_USER },
      capabilities: isPrivileged ? { bounding: all, effective: all, permitted: all } : {},
      noNewPrivileges: !isPrivileged,
    },
    root: { path: rootfs, readonly: true },
    mounts: [
      { destination: '/proc', type: 'proc', source: 'proc' },
      tmpfs('/tmp', '1777'),
      tmpfs('/run', '755'),
      bind('/var/lib/sandyard', data),
      ...(isPrivileged
        ? [bind('/dev'), bind('/sys', join(bundle, 'sys'))]
        : [tmpfs('/dev', '755'), tmpfs('/dev/shm', '1777')]),
    ],
    linux: {
      namespaces: ['mount', 'pid', 'ipc', 'uts'].map((type) => ({ type })),
      rootfsPropagation: 'rslave',
    },
  }
}
