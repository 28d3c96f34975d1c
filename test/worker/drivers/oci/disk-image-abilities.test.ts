import assert from 'node:assert/strict'
import { test } from 'node:test'
import { localCommands, type CommandRunner } from '../../../../src/lib/run-command.ts'
import { whyNoOci } from '../../../support/oci-driver.ts'
import {
  describeImageFlaw,
  findLackingImageAbilities,
  findMissingForDiskImages,
  findMissingForHostStat,
  findMissingForImageFormats,
  tryFuse,
} from '../../../../src/worker/drivers/oci/run/disk-image-abilities.ts'

test('disk images need a runtime that joins a user namespace, and volumes with idmapped mounts', () => {
  assert.equal(describeImageFlaw('crun', { volumes: null }), null)
  assert.equal(describeImageFlaw('runc', { volumes: null }), null)
  assert.equal(describeImageFlaw('runsc', { volumes: null }), "runsc can't mount them; crun and runc can")
  assert.match(describeImageFlaw('kata-runtime', { volumes: null }) ?? '', /^kata-runtime can't/)
  assert.match(describeImageFlaw('crun', { volumes: 'NFS' }) ?? '', /can't be idmapped here: NFS/)
  assert.deepEqual(findLackingImageAbilities('any flaw'), ['disk_images', 'disk_image_formats', 'raw_stat'])
})

test('a machine without the programs lacks the abilities, and each program is named with its package', () => {
  const path = process.env['PATH']
  process.env['PATH'] = '/nonexistent'
  try {
    const missing = findMissingForDiskImages()
    assert.ok(missing.includes("the program 'fuse2fs' is missing (package fuse2fs)"), missing.join())
    assert.ok(missing.includes("the program 'e2fsck' is missing (package e2fsprogs)"), missing.join())
    assert.match(
      findMissingForImageFormats().join(),
      /^the program 'qemu-storage-daemon' is missing \(package qemu-utils/,
    )
    assert.deepEqual(findMissingForHostStat(), ["the program 'bindfs' is missing (package bindfs)"])
    assert.deepEqual(findLackingImageAbilities(null), ['disk_images', 'disk_image_formats', 'raw_stat'])
  } finally {
    process.env['PATH'] = path
  }
})

test(
  'a machine whose root may make no device nodes can not mount FUSE, and the reason is named',
  { skip: whyNoOci() ?? false },
  async () => {
    const withoutMknod: Pick<CommandRunner, 'attempt'> = {
      attempt: (file, args, options) =>
        localCommands.attempt('setpriv', ['--bounding-set', '-mknod', '--inh-caps', '-mknod', file, ...args], options),
    }
    assert.equal(await tryFuse(localCommands), null)
    assert.match((await tryFuse(withoutMknod)) ?? '', /^FUSE can't be mounted in a user namespace here: mknodat:/)
  },
)
