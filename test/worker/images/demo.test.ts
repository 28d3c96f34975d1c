import assert from 'node:assert/strict'
import { mkdir, readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { runCommand } from '../../../src/lib/run-command.ts'
import { DEMO_REFERENCE, ensureDemoImage, writeDemoImage } from '../../../src/worker/images/demo.ts'
import { DEMO_PROGRAMS, findHostPrograms } from '../../../src/worker/images/demo-contents.ts'
import { makeTestImage, writeLayout } from '../../support/test-image.ts'
import { makeFolder, NEEDS_ROOT, openStore, wanted } from './setup.ts'

const COMMAND = { timeoutMs: 20_000 }

test(
  'the demo image is made from this host in seconds, and its programs run with only its own libraries',
  { skip: NEEDS_ROOT },
  async (t) => {
    const dir = await makeFolder(t)
    const store = await openStore(join(dir, 'store'), { uidShift: 0 })
    const start = performance.now()
    assert.equal(await ensureDemoImage(store), true)
    t.diagnostic(`made in ${(performance.now() - start).toFixed(0)} ms`)
    const image = await store.resolve(DEMO_REFERENCE, wanted({ policy: 'never' }))
    assert.deepEqual(image.config.cmd, ['/bin/sh'])
    const merged = join(dir, 'merged')
    await mkdir(merged)
    const scratch = join(dir, 'scratch')
    await mkdir(scratch)
    await mkdir(join(scratch, 'up'))
    await mkdir(join(scratch, 'work'))
    const overlay = `lowerdir=${image.layers.join(':')},upperdir=${scratch}/up,workdir=${scratch}/work`
    await runCommand('mount', ['-t', 'overlay', 'overlay', '-o', overlay, merged], COMMAND)
    try {
      const script = [
        'id demo; uname -s; ls -d /tmp; printf "b\\na\\n" | sort | head -n 1; echo x | grep x | sed s/x/y/; echo 1 2 | awk "{print \\$2}"',
        'tar -cf - /etc/passwd 2>/dev/null | gzip | gunzip | tar -tf -; find /etc -name group; stat -c %a /tmp; command -v ps; expr 1 + 1',
        'getent passwd demo; stty --version | head -n 1; env | grep PATH',
      ].join('; ')
      const env = { PATH: '/usr/sbin:/usr/bin:/bin' }
      const { stdout } = await runCommand('chroot', [merged, '/bin/sh', '-c', script], { ...COMMAND, env })
      for (const word of [
        'uid=1000(demo)',
        'Linux',
        '/tmp',
        'a\n',
        'y\n',
        '2\n',
        'etc/passwd',
        '/etc/group',
        '1777',
        '/ps\n',
        '/home/demo',
        'stty',
      ]) {
        assert.ok(stdout.includes(word), `${word} in ${stdout}`)
      }
    } finally {
      await runCommand('umount', [merged], COMMAND)
    }
    assert.deepEqual(await readdir(join(dir, 'store/tmp')), [])
  },
)

test(
  'the demo image is made only when it is missing or the programs changed, and never replaces a loaded one',
  { skip: NEEDS_ROOT },
  async (t) => {
    const dir = await makeFolder(t)
    const store = await openStore(join(dir, 'store'))
    const signal = AbortSignal.timeout(30_000)
    await writeDemoImage({
      outDir: join(dir, 'old'),
      programs: { ...(await findHostPrograms(['sh'])), fingerprint: 'of another day' },
    })
    await store.load(join(dir, 'old'), DEMO_REFERENCE, signal)
    assert.equal(await ensureDemoImage(store), true)
    assert.equal(await ensureDemoImage(store), false)
    await writeLayout(await makeTestImage({ layers: [[{ path: 'mine' }]] }), join(dir, 'mine'))
    await store.load(join(dir, 'mine'), DEMO_REFERENCE, signal)
    assert.equal(await ensureDemoImage(store), false)
  },
)

test('the same programs give the same demo image, byte for byte', async (t) => {
  const dir = await makeFolder(t)
  const programs = await findHostPrograms(DEMO_PROGRAMS.slice(0, 3))
  const first = await writeDemoImage({ outDir: join(dir, '1'), programs })
  const second = await writeDemoImage({ outDir: join(dir, '2'), programs })
  assert.equal(first, second)
  assert.deepEqual(await readFile(join(dir, '1/index.json')), await readFile(join(dir, '2/index.json')))
})
