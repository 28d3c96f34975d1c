import assert from 'node:assert/strict'
import { test } from 'node:test'
import { hideHostFolders } from '../../../../src/worker/drivers/oci/rootfs/hide-folders.ts'

test('folders of the worker are named to nobody, all else stays as it was said', () => {
  const said = 'open `/var/lib/s/runs/1/exec-a/0.json`: /var/lib/s/runs/1 and /etc/passwd: No such file'
  assert.equal(
    hideHostFolders(said, ['/var/lib/s/runs/1', '/']),
    'open `…/exec-a/0.json`: … and /etc/passwd: No such file',
  )
})
