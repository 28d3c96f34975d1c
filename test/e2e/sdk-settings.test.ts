import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import type { SandboxBuilder } from 'microsandbox'
import { whyNoDiskImages } from '../support/disk-images.ts'
import { DEMO_IMAGE, loadSdk, type Sdk } from '../support/sdk.ts'
import { whyNoVolumePool } from '../../src/worker/volumes/open-volume-storage.ts'
import { startServer, whyNoServer, type RealServer } from '../support/server.ts'

// The settings of a sandbox in the unmodified public SDK: each takes effect inside the sandbox, or is refused.

describe('settings of a sandbox by the SDK', { skip: whyNoServer() }, () => {
  let server: RealServer
  let sdk: Sdk
  let made = 0

  before(async () => {
    server = await startServer()
    sdk = await loadSdk(server)
  })
  after(() => server.close())

  /** Runs a script in a sandbox with these settings. Resolves with its output. */
  async function outputIn(script: string, configure: (builder: SandboxBuilder) => SandboxBuilder): Promise<string> {
    made++
    const box = await configure(sdk.Sandbox.builder(`set-${String(made)}`).image(DEMO_IMAGE)).create()
    const output = await box.shell(script)
    await sdk.Sandbox.remove(box.name)
    return output.stdout() + output.stderr()
  }

  // The builder's methods return the builder, but their declared return type is another one.
  const settings = (configure: (builder: SandboxBuilder) => unknown) => (builder: SandboxBuilder) => {
    configure(builder)
    return builder
  }

  test('scripts are programs on the PATH', async () => {
    const said = await outputIn(
      'greet you; command -v greet',
      settings((builder) => builder.script('greet', '#!/bin/sh\necho "hello $1"\n')),
    )
    assert.equal(said, 'hello you\n/.msb/scripts/greet\n')
  })

  test('a file system in memory has its size and its options', async () => {
    const said = await outputIn(
      "df -m /scratch | tail -1 | awk '{print $2}'; touch /fixed/x; cp /bin/true /scratch/; /scratch/true",
      settings((builder) =>
        builder
          .volume('/scratch', (mount) => mount.tmpfs().size(16).noexec())
          .volume('/fixed', (mount) => mount.tmpfs().readonly()),
      ),
    )
    assert.match(said, /^16\n/)
    assert.match(said, /\/fixed\/x.*Read-only file system/)
    assert.match(said, /\/scratch\/true: Permission denied/)
  })

  test('a folder of the default volume holds no more than its quota', async (t) => {
    const flaw = await whyNoVolumePool()
    if (flaw !== null) {
      t.skip(flaw)
      return
    }
    const said = await outputIn(
      'head -c 20000000 /dev/zero >/data/large; sync; stat -c %s /data/large',
      settings((builder) => builder.volume('/data', (mount) => mount.bind('limited').quota(8))),
    )
    assert.match(said, /quota exceeded/i)
    assert.ok(Number(/^\d+$/m.exec(said)?.[0]) <= 8 * 1024 * 1024, said)
  })

  test('a folder with the metadata of the volume refuses changes of owners', async (t) => {
    const flaw = whyNoDiskImages(['bindfs'])
    if (flaw !== null) {
      t.skip(flaw)
      return
    }
    const said = await outputIn(
      'echo x >/data/file; chmod 640 /data/file; chown 1 /data/file; stat -c "%u %a" /data/file',
      settings((builder) => builder.volume('/data', (mount) => mount.bind('metadata').statVirtualization('off'))),
    )
    assert.match(said, /^0 640$/m)
    assert.match(said, /chown: .*(Operation not permitted|Permission denied)/)
  })

  test('each patch is in place before the first command', async () => {
    const files = (await sdk.Volume.getDefault()).fs()
    await files.write('tree/inner/leaf', 'leaf')
    await files.write('single', 'single')
    const script = `cat /etc/text /opt/bytes /opt/copied /opt/tree/inner/leaf; stat -c %a /etc/text; readlink /opt/link
      stat -c '%F %a' /opt/folder; test -e /etc/hosts.removed || echo absent; tail -1 /etc/passwd`
    const said = await outputIn(
      script,
      settings((builder) =>
        builder.patch((patch) =>
          patch
            .text('/etc/text', 'text ', { mode: 0o600 })
            .file('/opt/bytes', Buffer.from('bytes '))
            .copyFile('single', '/opt/copied')
            .copyDir('tree', '/opt/tree')
            .symlink('/etc/text', '/opt/link')
            .mkdir('/opt/folder', { mode: 0o711 })
            .text('/etc/hosts.removed', 'x')
            .remove('/etc/hosts.removed')
            .append('/etc/passwd', 'appended:x:4242:4242::/:/bin/sh\n'),
        ),
      ),
    )
    assert.equal(said, 'text bytes singleleaf600\n/etc/text\ndirectory 711\nabsent\nappended:x:4242:4242::/:/bin/sh\n')
  })

  test(
    'a disk image of the default volume is a folder of the sandbox',
    { skip: whyNoDiskImages() ?? false },
    async () => {
      // The client demands that its own machine has a file at the path, too.
      const folder = mkdtempSync(join(tmpdir(), 'sandyard-image-'))
      const image = join(folder, 'd.img')
      execFileSync('mkfs.ext4', ['-q', image, '2M'], { stdio: 'ignore' })
      await (await sdk.Volume.getDefault()).fs().write(image, readFileSync(image))
      const writable = settings((builder) =>
        builder.volume('/disk', (mount) => mount.disk(image).format('raw').fstype('ext4')),
      )
      const readonly = settings((builder) =>
        builder.volume('/disk', (mount) => mount.disk(image).format('raw').readonly()),
      )
      assert.match(await outputIn('echo kept >/disk/file; df /disk | tail -1', writable), /^disk_image .* \/disk$/m)
      assert.match(await outputIn('cat /disk/file; touch /disk/x', readonly), /^kept\n.*Read-only file system/)
      rmSync(folder, { recursive: true })
    },
  )

  test('a patch that copies from outside the default volume fails the start, and the message names the patch', async () => {
    const builder = sdk.Sandbox.builder('outside')
      .image(DEMO_IMAGE)
      .patch((patch) => patch.copyFile('../../sealing.key', '/stolen'))
    await assert.rejects(async () => builder.create(), /sealing\.key|outside|patches/)
  })

  test('limits of the sandbox bind every process of it', async () => {
    const said = await outputIn(
      'ulimit -n; ulimit -Hn; nproc',
      settings((builder) => builder.rlimitRange('nofile', 100, 200)),
    )
    assert.match(said, /^100\n200\n/)
  })

  test('a process that exceeds the memory limit is killed, and the sandbox continues', async () => {
    const said = await outputIn(
      'head -c 300000000 /dev/zero | tail > /dev/null; echo $?',
      settings((builder) => builder.memory(128)),
    )
    assert.match(said, /(137|Killed)/)
  })

  test('the root disk has the requested size, and writes beyond it fail', async () => {
    const said = await outputIn(
      'dd if=/dev/zero of=/root/big bs=1M count=200 2>&1 | grep -o "No space left on device"',
      settings((builder) => builder.imageWith((image) => image.oci(DEMO_IMAGE).upperSize(64))),
    )
    assert.equal(said, 'No space left on device\n')
  })

  test('the restricted profile gives no new privileges', async () => {
    const said = await outputIn(
      'grep NoNewPrivs /proc/self/status',
      settings((builder) => builder.security('restricted')),
    )
    assert.match(said, /NoNewPrivs:\s+1/)
  })

  test('a sandbox without a network has only a loopback device', async () => {
    const said = await outputIn(
      'ip -o link | cut -d: -f2',
      settings((builder) => builder.disableNetwork()),
    )
    assert.equal(said.trim(), 'lo')
  })

  test('the network policy decides what is reachable: names by default, nothing when everything is denied, and the host never', async () => {
    const host = createServer((_, response) => response.end('reached'))
    const port = await listen(host)
    const connect = (address: string, at: number): string =>
      `timeout 2 bash -c 'exec 3<>/dev/tcp/'${address}'/${String(at)}' 2>/dev/null && echo reached || echo refused`
    const script = `resolver=$(awk '/^nameserver/ {print $2; exit}' /etc/resolv.conf)
      gateway=$(ip route | awk '/^default/ {print $3}')
      (${connect('$resolver', 53)}) > /tmp/1 & (${connect('$gateway', port)}) > /tmp/2 &
      (${connect('169.254.169.254', 80)}) > /tmp/3 & wait; cat /tmp/1 /tmp/2 /tmp/3`
    const policies = [
      ['reached refused refused', settings((builder) => builder)],
      ['refused refused refused', withPolicy(new sdk.NetworkPolicyBuilder().defaultDeny())],
      [
        'reached refused refused',
        withPolicy(new sdk.NetworkPolicyBuilder().defaultDeny().egress((rule) => rule.tcp().port(53).allowHost())),
      ],
      [
        'refused refused refused',
        withPolicy(new sdk.NetworkPolicyBuilder().defaultDeny().egress((rule) => rule.tcp().port(port).allowHost())),
      ],
    ] as const
    try {
      const said = await Promise.all(policies.map(([, configure]) => outputIn(script, configure)))
      assert.deepEqual(
        said.map((text) => text.trim().replaceAll('\n', ' ')),
        policies.map(([expected]) => expected),
      )
    } finally {
      host.closeAllConnections()
      host.close()
    }
    function withPolicy(
      policy: InstanceType<Sdk['NetworkPolicyBuilder']>,
    ): (builder: SandboxBuilder) => SandboxBuilder {
      return settings((builder) => builder.network((network) => network.policyFromBuilder(policy)))
    }
  })

  test('an init is process 1, and commands run beside it', async () => {
    const script = 'echo "$MARK as $0"; while :; do sleep 1; done'
    const said = await outputIn(
      'tr "\\0" "\\n" </proc/1/cmdline | tail -1; tr "\\0" "\\n" </proc/1/environ | grep ^MARK',
      settings((builder) =>
        builder.initWith('/bin/sh', (init) => init.args(['-c', script, 'the-init']).envs({ MARK: 'mine' })),
      ),
    )
    assert.equal(said, 'the-init\nMARK=mine\n')
  })

  test('a secret shows its placeholder, and never its value', async () => {
    const seen = await outputIn(
      'env',
      settings((builder) => builder.secretEnv('TOKEN', 'a-secret-value', 'api.example')),
    )
    assert.match(seen, /^TOKEN=\$MSB_TOKEN$/m)
    assert.doesNotMatch(seen, /a-secret-value/)
  })

  test('a setting that no worker can enforce is refused by name, and nothing is created', async () => {
    const refusals = [
      [(builder: SandboxBuilder) => builder.volume('/data', (mount) => mount.named('data')), /mounts\[0\]/],
      [(builder: SandboxBuilder) => builder.label('sandyard.isolation', 'microvm'), /labels\.sandyard\.isolation/],
    ] as const
    for (const [configure, field] of refusals) {
      const builder = sdk.Sandbox.builder('refused').image(DEMO_IMAGE)
      configure(builder)
      await assert.rejects(builder.create(), (error: unknown) => {
        assert.ok(error instanceof sdk.InvalidConfigError, String(error))
        assert.match(error.message, field)
        return true
      })
    }
    await assert.rejects(sdk.Sandbox.get('refused'), sdk.SandboxNotFoundError)
  })
})

function listen(server: ReturnType<typeof createServer>): Promise<number> {
  return new Promise((resolve) => {
    server.listen(0, '0.0.0.0', () => {
      const address = server.address()
      resolve(typeof address === 'object' && address !== null ? address.port : 0)
    })
  })
}
