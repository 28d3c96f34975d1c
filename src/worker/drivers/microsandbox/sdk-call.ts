/**
 * The one program that loads the SDK: a process of its own for each call, so that neither its native module nor what
 * that keeps for a whole process (backend, home, database) is the worker's, and a crash of it is one failed start.
 */
import { text } from 'node:stream/consumers'
import { applyVmConfig } from './apply-vm-config.ts'
import type { SdkAnswer, SdkRequest } from './sdk-client.ts'

const request = JSON.parse(await text(process.stdin)) as SdkRequest // written by sdk-client.ts
process.stdout.write(JSON.stringify(await answer(request)))

async function answer(asked: SdkRequest): Promise<SdkAnswer> {
  const { AgentClient, MicrosandboxError, Sandbox } = await import('microsandbox')
  try {
    switch (asked.kind) {
      case 'create':
        await (await applyVmConfig(Sandbox.builder(asked.config.name), asked.config).create()).detach()
        return { kind: 'done', value: null }
      case 'start':
        await (await Sandbox.startDetached(asked.name)).detach()
        return { kind: 'done', value: null }
      case 'build':
        return { kind: 'done', value: await applyVmConfig(Sandbox.builder(asked.config.name), asked.config).build() }
      case 'socket':
        return { kind: 'done', value: AgentClient.socketPath(asked.name) }
    }
  } catch (error) {
    if (error instanceof MicrosandboxError) return { kind: 'failed', code: error.code, message: error.message }
    // The binding writes `[Kind] text` for the kinds that have no class, a virtual machine that does not boot among them.
    const words = /^\[(\w+)\] ([\s\S]*)$/.exec(error instanceof Error ? error.message : String(error))
    return { kind: 'failed', code: words?.[1] ?? 'unknown', message: words?.[2] ?? String(error) }
  }
}
