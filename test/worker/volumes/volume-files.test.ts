import assert from 'node:assert/strict'
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import {
  chmod,
  chown,
  lchown,
  lstat,
  mkdir,
  readFile,
  readlink,
  stat,
  symlink,
  truncate,
  utimes,
  writeFile,
} from 'node:fs/promises'
import { existsSync, readdirSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { PassThrough } from 'node:stream'
import { test } from 'node:test'
import { deleteStaleTemporaries } from '../../../src/worker/volumes/temporary-files.ts'
import {
  contentFrom,
  isRoot,
  makeVolumeFolder,
  namesBeneath,
  refusal,
  SERVED,
  textOf,
  UID_SHIFT,
  unfinishedIn,
} from './volume-folder.ts'

/** A folder in memory, where creating thousands of folders is fast. Undefined if this machine has none. */
const inMemory = existsSync('/dev/shm') ? '/dev/shm' : undefined

for (const { how, make, keepsOwners } of SERVED) {
  test(`a file is listed, described and read as it was written, in folders created for it (${how})`, async () => {
    await using volume = await make()
    const { files } = volume
    assert.deepEqual(await files.write('/a/b/grüße.txt', contentFrom('hello')), { sizeBytes: 5 })
    assert.equal(
      await textOf(files, 'a//./b/grüße.txt'),
      'hello',
      'a path has one leading slash or none, and empty steps are ignored',
    )
    const [folder, ...others] = await files.list('/a')
    assert.deepEqual(others, [])
    assert.equal(folder?.path, '/a/b')
    assert.equal(folder.kind, 'directory')
    assert.equal(folder.mode, 0o40755)
    const [file] = await files.list('a/b/')
    assert.deepEqual(file, await files.stat('a/b/grüße.txt'))
    const { accessed_at, modified_at, created_at, ...rest } = await files.stat('/a/b/grüße.txt')
    assert.deepEqual(rest, {
      path: '/a/b/grüße.txt',
      kind: 'file',
      size: 5,
      mode: 0o100644,
      uid: 0,
      gid: 0,
      readonly: false,
    })
    for (const time of [accessed_at, modified_at, created_at])
      assert.match(time, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/)
    assert.equal((await stat(join(volume.root, 'a'))).uid, UID_SHIFT)
    assert.deepEqual(
      (await files.list('/')).map(({ path }) => path),
      ['/a'],
    )
    assert.deepEqual(await files.list(''), await files.list('/'))
    await files.write('/empty', contentFrom(''))
    assert.equal(await textOf(files, '/empty'), '')
  })

  test(`a file that a sandbox has a lease on is in use, and no operation waits for the lease (${how})`, async () => {
    await using volume = await make()
    const { files } = volume
    await files.write('/file', contentFrom('x'))
    const lease = `$SIG{IO} = 'IGNORE'; open F, '+<', shift; fcntl F, 1024, 1 or die $!; syswrite STDOUT, 'held'; <STDIN>`
    const holder = spawn('perl', ['-e', lease, join(volume.root, 'file')], { stdio: ['pipe', 'pipe', 'inherit'] })
    try {
      await once(holder.stdout, 'data')
      await assert.rejects(files.copy('/file', '/copy'), refusal('volume_file_conflict'))
      await assert.rejects(textOf(files, '/file'), refusal('volume_file_conflict'))
      assert.deepEqual(readdirSync(volume.root), ['file'])
    } finally {
      holder.stdin.end()
    }
  })

  test(`every operation reports a missing file as not found (${how})`, async () => {
    await using volume = await make()
    const { files } = volume
    await files.write('/file', contentFrom('x'))
    for (const path of ['/none', '/none/deeper', '/file/deeper']) {
      assert.equal(await files.exists(path), false)
      await assert.rejects(files.stat(path), refusal('volume_file_not_found'))
      await assert.rejects(files.list(path), refusal('volume_file_not_found'))
      await assert.rejects(files.read(path), refusal('volume_file_not_found'))
      await assert.rejects(files.remove(path, { isRecursive: true }), refusal('volume_file_not_found'))
      await assert.rejects(files.copy(path, '/made/x'), refusal('volume_file_not_found'))
      await assert.rejects(files.rename(path, '/made/x'), refusal('volume_file_not_found'))
    }
    assert.deepEqual(readdirSync(volume.root), ['file'])
  })

  test(`every operation refuses an invalid path and creates nothing (${how})`, async () => {
    await using volume = await make()
    const { files } = volume
    await files.write('/there', contentFrom('x'))
    const name = 'é'.repeat(128)
    const paths = [
      '//x',
      '///',
      '..',
      '/..',
      'a/../b',
      '/a/..',
      'nul\0',
      'x'.repeat(256),
      name,
      'a/'.repeat(2048),
      '\ud800',
    ]
    for (const path of [...paths, '.sandyard-unfinished-0']) {
      await assert.rejects(files.list(path), refusal('invalid_volume_path'))
      await assert.rejects(files.stat(path), refusal('invalid_volume_path'))
      await assert.rejects(files.exists(path), refusal('invalid_volume_path'))
      await assert.rejects(files.read(path), refusal('invalid_volume_path'))
      await assert.rejects(files.write(path, contentFrom('x')), refusal('invalid_volume_path'))
      await assert.rejects(files.mkdir(path), refusal('invalid_volume_path'))
      await assert.rejects(files.copy(path, '/new'), refusal('invalid_volume_path'))
      await assert.rejects(files.copy('/there', path), refusal('invalid_volume_path'))
      await assert.rejects(files.rename(path, '/new'), refusal('invalid_volume_path'))
      await assert.rejects(files.rename('/there', path), refusal('invalid_volume_path'))
      await assert.rejects(files.remove(path, { isRecursive: true }), refusal('invalid_volume_path'))
    }
    for (const path of ['/', '', '.']) {
      await assert.rejects(files.remove(path, { isRecursive: true }), refusal('invalid_volume_path'))
      await assert.rejects(files.rename(path, '/new'), refusal('invalid_volume_path'))
      await assert.rejects(files.write(path, contentFrom('x')), refusal('volume_file_conflict'))
      await assert.rejects(files.rename('/there', path), refusal('volume_file_conflict'))
      await assert.rejects(files.copy('/there', path), refusal('volume_file_conflict'))
      await files.mkdir(path)
    }
    assert.deepEqual(readdirSync(volume.root), ['there'])
  })

  test(`a symlink within the volume appears as its target; one that leads out, nowhere or in a loop is hidden (${how})`, async () => {
    await using volume = await make()
    const { files, root } = volume
    await writeFile(join(volume.dir, 'secret'), 'secret')
    await files.write('/folder/file', contentFrom('inside'))
    const links: Readonly<Record<string, string>> = {
      file: 'folder/file',
      folderlink: './folder/',
      'folder/up': '../folder/../file',
      'folder/out': '../../secret',
      out: '../secret',
      back: '../volume/folder/file',
      absolute: join(root, 'folder/file'),
      dangling: 'none',
      loop: 'loop',
      bytes: 'folder',
    }
    for (const [name, target] of Object.entries(links)) await symlink(target, join(root, name))
    const shown = (await files.list('/')).map(({ path, kind }) => `${path} ${kind}`)
    assert.deepEqual(shown, ['/bytes directory', '/file file', '/folder directory', '/folderlink directory'])
    assert.deepEqual(
      (await files.list('/folderlink')).map(({ path, size }) => `${path} ${size}`),
      ['/folderlink/file 6', '/folderlink/up 6'],
    )
    assert.equal(await textOf(files, '/folderlink/up'), 'inside')
    for (const path of ['/out', '/back', '/absolute', '/loop', '/folder/out', '/dangling']) {
      assert.equal(await files.exists(path), false)
      await assert.rejects(files.stat(path), refusal('volume_file_not_found'))
      if (path === '/dangling') continue
      await assert.rejects(files.read(path), refusal('invalid_volume_path'))
      await assert.rejects(files.write(path, contentFrom('x')), refusal('invalid_volume_path'))
      await assert.rejects(files.stat(`${path}/x`), refusal('invalid_volume_path'))
      await assert.rejects(files.mkdir(`${path}/x`), refusal('invalid_volume_path'))
    }
    await files.write('/dangling', contentFrom('now'))
    assert.equal(await readFile(join(root, 'none'), 'utf8'), 'now', 'a write goes where the link leads')
    await files.remove('/out', { isRecursive: false })
    await files.rename('/loop', '/loop2')
    assert.equal(await readlink(join(root, 'loop2')), 'loop', 'links themselves are moved and removed')
    assert.equal(await readFile(join(volume.dir, 'secret'), 'utf8'), 'secret')
  })

  test(`overwriting a file keeps its permissions and owner except set-user-id; overwriting a folder is refused (${how})`, async () => {
    await using volume = await make()
    const { files, root } = volume
    await files.write('/script', contentFrom('old'))
    if (keepsOwners) await chown(join(root, 'script'), UID_SHIFT + 33, UID_SHIFT + 44)
    await chmod(join(root, 'script'), 0o4750)
    await files.write('/script', contentFrom('new'))
    const { mode, uid, gid } = await files.stat('/script')
    assert.deepEqual([mode, uid, gid], [0o100750, keepsOwners ? 33 : 0, keepsOwners ? 44 : 0])
    assert.equal(await textOf(files, '/script'), 'new')
    await files.mkdir('/folder')
    await assert.rejects(files.write('/folder', contentFrom('x')), refusal('volume_file_conflict'))
    await assert.rejects(files.write('/script/below', contentFrom('x')), refusal('volume_file_conflict'))
    await assert.rejects(files.mkdir('/script'), refusal('volume_file_conflict'))
    await files.mkdir('/folder')
    assert.deepEqual(unfinishedIn(root), [])
  })

  test(`foreign owners, impossible times and names that are not UTF-8 don’t break a listing (${how})`, async (t) => {
    if (!isRoot) return t.skip('needs root: it gives files to others')
    await using volume = await make()
    const { files, root } = volume
    for (const [name, uid] of Object.entries({ a: 5, b: UID_SHIFT + 65_535, c: UID_SHIFT + 65_536 })) {
      await writeFile(join(root, name), '')
      await chown(join(root, name), uid, uid)
    }
    await utimes(join(root, 'a'), 15_000_000_000, 15_000_000_000) // the year 2445; ext4 can store times up to 2446
    await writeFile(Buffer.concat([Buffer.from(`${root}/`), Buffer.from([0x66, 0xff])]), '')
    const listed = await files.list('/')
    assert.deepEqual(
      listed.map(({ path, uid, gid }) => [path, uid, gid]),
      [
        ['/a', 65_534, 65_534],
        ['/b', 65_535, 65_535],
        ['/c', 65_534, 65_534],
      ],
    )
  })

  test(
    `FIFOs, sockets and devices are hidden, never opened, and may be removed (${how})`,
    { timeout: 10_000 },
    async () => {
      await using volume = await make()
      const { files, root } = volume
      execFileSync('mkfifo', [join(root, 'fifo')])
      const server = createServer().listen(join(root, 'socket'))
      if (isRoot) execFileSync('mknod', [join(root, 'null'), 'c', '1', '3'])
      await symlink('fifo', join(root, 'link'))
      assert.deepEqual(await files.list('/'), [])
      for (const path of ['/fifo', '/socket', '/link', ...(isRoot ? ['/null'] : [])]) {
        assert.equal(await files.exists(path), false)
        await assert.rejects(files.read(path), refusal('volume_file_not_found'))
        await assert.rejects(files.copy(path, '/copy'), refusal('volume_file_not_found'))
        await assert.rejects(files.write(path, contentFrom('x')), refusal('volume_file_conflict'))
      }
      await files.copy('/', '/x').then(
        () => assert.fail('a folder was copied into itself'),
        (error: unknown) => assert.ok(refusal('volume_file_conflict')(error)),
      )
      await files.remove('/fifo', { isRecursive: false })
      assert.equal(existsSync(join(root, 'fifo')), false)
      server.close()
    },
  )

  test(`a copy of a folder has the contents, owners, permissions, links, holes and names of the original, even names that are not UTF-8 (${how})`, async () => {
    await using volume = await make()
    const { files, root } = volume
    await files.write('/from/deep/file', contentFrom('one'))
    await files.write('/from/script', contentFrom('two'))
    await chmod(join(root, 'from/script'), 0o4711)
    if (keepsOwners) await chown(join(root, 'from/deep'), UID_SHIFT + 7, UID_SHIFT + 8)
    await chmod(join(root, 'from'), 0o2700)
    await symlink('../../../../etc/passwd', join(root, 'from/deep/link'))
    if (keepsOwners) await lchown(join(root, 'from/deep/link'), UID_SHIFT + 9, UID_SHIFT + 9)
    execFileSync('mkfifo', [join(root, 'from/fifo')])
    await writeFile(join(root, 'from/sparse'), 'x')
    await truncate(join(root, 'from/sparse'), 128 * 1024 * 1024)
    const bytes = Buffer.from([0x66, 0xff, 0x0a])
    await writeFile(Buffer.concat([Buffer.from(`${root}/from/`), bytes]), 'bytes')
    await files.copy('/from', '/made/for/it')
    const copy = join(root, 'made/for/it')
    assert.equal(await textOf(files, '/made/for/it/deep/file'), 'one')
    assert.equal((await stat(join(copy, 'script'))).mode, 0o104711)
    assert.equal((await stat(copy)).mode & 0o7777, 0o2700)
    assert.equal((await stat(copy)).uid, UID_SHIFT)
    assert.equal((await stat(join(copy, 'deep'))).uid, UID_SHIFT + (keepsOwners ? 7 : 0))
    assert.equal(await readlink(join(copy, 'deep/link')), '../../../../etc/passwd')
    assert.equal((await lstat(join(copy, 'deep/link'))).uid, UID_SHIFT + (keepsOwners ? 9 : 0))
    assert.equal(existsSync(join(copy, 'fifo')), false)
    const sparse = await stat(join(copy, 'sparse'))
    assert.equal(sparse.size, 128 * 1024 * 1024)
    assert.ok(sparse.blocks * 512 < 4 * 1024 * 1024, `${sparse.blocks} blocks`)
    assert.equal(await readFile(Buffer.concat([Buffer.from(`${copy}/`), bytes]), 'utf8'), 'bytes')
    await files.copy('/from/script', '/made/for/it/deep/file')
    assert.equal(await textOf(files, '/made/for/it/deep/file'), 'two', 'a file takes the place of a file')
    assert.deepEqual(unfinishedIn(root), [])
  })

  test(`a folder can’t be put into itself or over something, and a refusal leaves nothing behind (${how})`, async () => {
    await using volume = await make()
    const { files, root } = volume
    await files.write('/a/b/c', contentFrom('x'))
    await files.write('/full/x', contentFrom('y'))
    await files.write('/file', contentFrom('z'))
    await symlink('a/b', join(root, 'link'))
    for (const name of ['copy', 'rename'] as const) {
      const put = (from: string, to: string): Promise<void> => files[name](from, to)
      await assert.rejects(put('/a', '/a/new/deep'), refusal('volume_file_conflict'))
      await assert.rejects(put('/a', '/link/new'), refusal('volume_file_conflict'))
      await assert.rejects(put('/a', '/full'), refusal('volume_file_conflict'))
      await assert.rejects(put('/a', '/file'), refusal('volume_file_conflict'))
      await assert.rejects(put('/file', '/full'), refusal('volume_file_conflict'))
      await assert.rejects(put('/file', '/file/x'), refusal('volume_file_conflict'))
    }
    assert.deepEqual(namesBeneath(root), ['a', 'a/b', 'a/b/c', 'file', 'full', 'full/x', 'link'])
    await files.rename('/a', '/new/place')
    assert.equal(await textOf(files, '/new/place/b/c'), 'x')
    await files.rename('/file', '/full/x')
    assert.equal(await textOf(files, '/full/x'), 'z')
  })

  test(`a folder of any depth is removed only by a recursive removal (${how})`, { timeout: 60_000 }, async () => {
    await using volume = await make(inMemory)
    const { files, root } = volume
    await files.mkdir('/-rf')
    await assert.rejects(files.remove('/-rf', { isRecursive: false }), (error: unknown) => {
      return refusal('volume_file_conflict')(error) && error instanceof Error && error.message.includes('recursive')
    })
    await files.remove('/-rf', { isRecursive: true })
    execFileSync(
      process.execPath,
      [
        '-e',
        `process.chdir(${JSON.stringify(root)}); for (let i = 0; i < 2000; i++) { require('fs').mkdirSync('deeper-and-deeper'); process.chdir('deeper-and-deeper') }`,
      ],
      volume.user,
    )
    await assert.rejects(files.copy('/deeper-and-deeper', '/copy'), refusal('volume_file_conflict'))
    await files.remove('/deeper-and-deeper', { isRecursive: true })
    assert.deepEqual(readdirSync(root), [])
  })

  test(`the deepest allowed path can be created, listed and removed (${how})`, async () => {
    await using volume = await make(inMemory)
    const { files, root } = volume
    const path = 'a/'.repeat(2047)
    await files.mkdir(path)
    assert.deepEqual(await files.list(path), [])
    await files.remove('a', { isRecursive: true })
    assert.deepEqual(readdirSync(root), [])
  })

  test(`readers see the old content while a file is written, and a broken write changes nothing (${how})`, async () => {
    await using volume = await make()
    const { files, root } = volume
    await files.write('/file', contentFrom('old'))
    for (const path of ['/file', '/new/folder/file']) {
      const content = new PassThrough()
      const writing = files.write(path, content)
      content.write('half')
      assert.equal(await textOf(files, '/file'), 'old')
      assert.deepEqual(
        (await files.list('/')).map((file) => file.path),
        ['/file'],
      )
      content.destroy(Object.assign(new Error('gone'), { code: 'ENOENT' }))
      await assert.rejects(writing, /ended early/)
    }
    assert.deepEqual(namesBeneath(root), ['file'])
    assert.equal(await textOf(files, '/file'), 'old')
  })

  test(`reading fails when a file becomes shorter, and ignores growth (${how})`, async () => {
    await using volume = await make()
    const { files, root } = volume
    await writeFile(join(root, 'file'), Buffer.alloc(2 * 1024 * 1024))
    const short = await files.read('/file')
    await truncate(join(root, 'file'), 1024 * 1024)
    await assert.rejects(async () => {
      for await (const _ of short.content) continue
    }, /shorter/)
    const grown = await files.read('/file')
    await truncate(join(root, 'file'), 2 * 1024 * 1024)
    let read = 0
    for await (const chunk of grown.content) read += Buffer.byteLength(chunk)
    assert.equal(read, 1024 * 1024)
  })
}

test('unfinished files and folders of a killed worker are deleted, and nothing else', async () => {
  await using volume = await makeVolumeFolder()
  const { files, root } = volume
  await files.write('/a/b/file', contentFrom('x'))
  const name = `.sandyard-unfinished-${'0a'.repeat(16)}`
  await mkdir(join(root, 'a', name))
  await writeFile(join(root, 'a', name, 'x'), '')
  await writeFile(join(root, 'a/b', name), '')
  await writeFile(join(root, 'a/b', `${name}x`), '')
  assert.deepEqual(
    (await files.list('/a')).map(({ path }) => path),
    ['/a/b'],
  )
  await symlink(volume.dir, join(root, 'out'))
  await writeFile(join(volume.dir, name), '')
  await deleteStaleTemporaries(root, 60_000)
  assert.equal(unfinishedIn(root).length, 4, 'a recent unfinished file may still be in use')
  await deleteStaleTemporaries(root, 0)
  assert.deepEqual(unfinishedIn(root), [`a/b/${name}x`])
  assert.equal(await textOf(files, '/a/b/file'), 'x')
  assert.ok(existsSync(join(volume.dir, name)))
})
