/**
 * The program that calls the SDK, in a separate process for each call. Nothing else loads the SDK, so the SDK's native
 * module and process-wide state (backend, home, database) stay out of the worker. A crash of the SDK fails only one
 * start.
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
        if (asked.env !== null) {
          const sandbox = await Sandbox.get(asked.name)
          await sandbox.modify({ env: { ...asked.env.set }, envRemove: [...asked.env.removed], policy: 'next_start' })
        }
        await (await Sandbox.startDetached(asked.name)).detach()
        return { kind: 'done', value: null }
      case 'build':
        return { kind: 'done', value: await applyVmConfig(Sandbox.builder(asked.config.name), asked.config).build() }
      case 'socket':
        return { kind: 'done', value: AgentClient.socketPath(asked.name) }
    }
  } catch (error) {
    if (error instanceof MicrosandboxError) return { kind: 'failed', code: error.code, message: error.message }
    // If the SDK has no class for a kind of error, such as a failed boot, the message is `[Kind] text`.
    const words = /^\[(\w+)\] ([\s\S]*)$/.exec(error instanceof Error ? error.message : String(error))
    return { kind: 'failed', code: words?.[1] ?? 'unknown', message: words?.[2] ?? String(error) }
  }
}
