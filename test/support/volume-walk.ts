import assert from 'node:assert/strict'
import type { Sdk } from './sdk.ts'

/** The files of a volume, as the SDK of the public client has them. */
type VolumeFs = ReturnType<InstanceType<Sdk['Volume']>['fs']>

/** Does every file operation of the public client on an empty volume. Leaves the folders `docs` and `made`, and the file `empty`. */
export async function walkVolumeFiles(fs: VolumeFs): Promise<void> {
  await fs.write('docs/öne.txt', 'first')
  await fs.write('/docs/two.txt', new Uint8Array([0, 255]))
  assert.equal(await fs.readToString('/docs/öne.txt'), 'first')
  assert.deepEqual([...(await fs.read('docs/two.txt'))], [0, 255])
  assert.deepEqual((await fs.list('docs')).map(({ path }) => path), ['/docs/two.txt', '/docs/öne.txt']) // prettier-ignore
  assert.equal((await fs.stat('docs/öne.txt')).size, 5)
  assert.deepEqual([await fs.exists('docs'), await fs.exists('none')], [true, false])
  await fs.mkdir('made/deep')
  await fs.copy('docs', 'copied')
  await fs.rename('copied/two.txt', 'made/deep/moved.bin')
  assert.deepEqual([...(await fs.read('made/deep/moved.bin'))], [0, 255])
  await fs.remove('docs/two.txt')
  await fs.removeDir('copied')
  assert.deepEqual((await fs.list('/')).map(({ path }) => path).toSorted(), ['/docs', '/made']) // prettier-ignore
  await assert.rejects(fs.read('none'))
  await assert.rejects(fs.read('../../etc/passwd'))
  await fs.write('empty', '')
  assert.equal((await fs.read('empty')).length, 0)
}
