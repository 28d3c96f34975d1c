import assert from 'node:assert/strict'
import { test } from 'node:test'
import { asId, type RunId } from '../../../../src/domain/ids.ts'
import { makeMemoryKillParser, type MemoryKill } from '../../../../src/worker/processes/kernel-log.ts'
import { describeMemoryKills } from '../../../../src/worker/drivers/oci/cgroups/describe-memory-kills.ts'

const ALL = '/sandyard/0123456789ab'
const RUN_ID = asId<RunId>('019aa6c7-0000-7000-8000-000000000001')
const RUN = `${ALL}/${RUN_ID}`
const victim = (limit: string, name: string): string =>
  `6,1,1,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c,mems_allowed=0${limit},task_memcg=${RUN}/c,task=${name},pid=12,uid=0\n`
const killed = (name: string): string =>
  `3,2,2,-;Memory cgroup out of memory: Killed process 12 (${name}) total-vm:531752kB, anon-rss:64896kB, file-rss:4672kB, shmem-rss:0kB, UID:1\n`

function parse(...records: readonly string[]): readonly MemoryKill[] {
  const parser = makeMemoryKillParser()
  return records.map(parser).filter((kill) => kill !== null)
}

test('the kernel’s messages say which process was killed, its memory, and which limit was reached', () => {
  const told = (...records: readonly string[]): string =>
    describeMemoryKills(parse(...records), { run: RUN_ID, count: 1, memoryMib: 64 })
  const noise = '6,1,1,-;EXT4-fs (loop1): mounted\n SUBSYSTEM=block\n'
  const because = "out of memory: the kernel killed a process ('dd' with 68 MiB) because"
  assert.equal(
    told(noise, victim(`,oom_memcg=${RUN}`, 'dd'), noise, killed('dd')),
    `${because} the sandbox reached its memory limit of 64 MiB`,
  )
  assert.equal(
    told(victim(`,oom_memcg=${ALL}`, 'dd'), killed('dd')),
    `${because} all sandboxes of this machine together reached their memory limit`,
  )
  assert.equal(told(victim(',global_oom', 'dd'), killed('dd')), `${because} the machine ran out of memory`)
})

test('a process may have any name, and a kill without its first line has no cgroup', () => {
  const name = 'a),pid=1,uid=('
  assert.deepEqual(parse(victim(`,oom_memcg=${RUN}`, name), killed(name)), [
    { program: name, usedMib: 68, cgroup: `${RUN}/c`, limitedBy: RUN },
  ])
  assert.deepEqual(parse(killed('dd')), [{ program: 'dd', usedMib: 68, cgroup: null, limitedBy: null }])
  assert.deepEqual(parse(victim(`,oom_memcg=${RUN}`, 'other'), killed('dd'))[0]?.cgroup, null)
})

test('without the kernel’s messages, the text says how many processes were killed', () => {
  assert.equal(
    describeMemoryKills([], { run: RUN_ID, count: 3, memoryMib: 64 }),
    'out of memory: the kernel killed 3 processes because the sandbox reached its memory limit of 64 MiB',
  )
})
