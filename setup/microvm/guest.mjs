import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'

/** The time limit of a whole run. */
const limitMs = 40 * 60_000
const memoryMib = 3072

/**
 * Boots the guest and prints its output. Each line starts with the seconds since power-on. Resolves with exit code 0
 * when every step succeeded and the guest reported its end, otherwise with 1. Changes that the guest makes to its disks
 * are discarded.
 */
export async function runGuest({ base, projectDisk, folder }) {
  const kernelLog = join(folder, 'console.log')
  const startMs = performance.now()
  const qemu = spawn('qemu-system-x86_64', qemuArguments({ base, projectDisk, kernelLog }), {
    // QEMU writes changes of the disks to an unnamed file in this folder.
    env: { ...process.env, TMPDIR: folder },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const end = new Promise((resolve, reject) => {
    qemu.once('error', reject)
    qemu.once('exit', resolve)
  })
  const endQemu = () => qemu.kill('SIGKILL')
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(signal, endQemu)
  let timedOut = false
  const timer = setTimeout(() => {
    timedOut = true
    endQemu()
  }, limitMs)
  const steps = new Map()
  let isOver = false
  for await (const raw of createInterface({ input: qemu.stdout })) {
    const line = raw.replaceAll('\r', '')
    const seconds = ((performance.now() - startMs) / 1000).toFixed(0).padStart(5)
    process.stdout.write(`[${seconds} s] ${line}\n`)
    const [, word, rest = ''] = /^microvm: (step|end|over) ?(.*)$/.exec(line) ?? []
    if (word === 'step') steps.set(rest, null)
    if (word === 'end') steps.set(rest.slice(0, rest.lastIndexOf(' ')), Number(rest.slice(rest.lastIndexOf(' ') + 1)))
    if (word === 'over') isOver = true
  }
  await end
  clearTimeout(timer)
  const failed = [...steps].filter(([, exitCode]) => exitCode !== 0)
  if (!isOver) {
    process.stdout.write(`The guest ${timedOut ? 'was not done within 40 minutes' : 'died'}; the end of its console:\n`)
    process.stdout.write(`${readFileSync(kernelLog, 'utf8').slice(-6000)}\n`)
  }
  for (const [name, exitCode] of failed)
    process.stdout.write(`failed: ${name} (${exitCode === null ? 'it never ended' : `exit code ${exitCode}`})\n`)
  return isOver && failed.length === 0 && steps.size > 0 ? 0 : 1
}

/** The command line of QEMU. With two processors, the guest's kernel panicked at the third sandbox (2026-11). */
function qemuArguments({ base, projectDisk, kernelLog }) {
  const options = {
    machine: 'q35',
    accel: 'tcg,thread=multi',
    cpu: 'max', // an AMD processor with SVM and nested pages
    smp: '1',
    m: `${memoryMib}`,
    kernel: join(base, 'vmlinuz'),
    initrd: join(base, 'initramfs'),
    append: 'console=ttyS0 panic=-1 mitigations=off kvm_amd.nested=0',
    display: 'none',
    nic: 'none',
  }
  const disks = [join(base, 'disk.ext4'), projectDisk].map(
    (file) => `file=${file},format=raw,if=virtio,snapshot=on,cache=unsafe`,
  )
  return [
    '-nodefaults',
    '-no-reboot',
    ...Object.entries(options).flatMap(([name, value]) => [`-${name}`, value]),
    ...disks.flatMap((disk) => ['-drive', disk]),
    ...[`file:${kernelLog}`, 'stdio'].flatMap((line) => ['-serial', line]),
  ]
}
