import { useState } from 'preact/hooks'
import { get, post } from '../../lib/api.ts'
import { useLoad } from '../../lib/load.ts'
import { go } from '../../lib/router.ts'
import type { Sandbox, Volume } from '../../lib/types.ts'
import { CheckField, Field, Form, SelectField, TextArea, TextField, type FormValues } from '../../ui/form.tsx'
import { Page } from '../../ui/page.tsx'
import { bodyOf, EXAMPLE_POLICY, NETWORK_PRESETS, type NetworkPreset } from './sandbox-body.ts'

/** An image that every server has: it is built from programs of its own machine. */
const FIRST_IMAGE = 'localhost/demo'

/** The form that creates a sandbox and starts it. Everything but the image may stay as it is. */
export default function Create() {
  const [network, setNetwork] = useState<NetworkPreset>('public')
  const create = async (values: FormValues): Promise<void> => {
    const { id } = await post<Sandbox>('/v1/sandboxes', bodyOf(values), { query: { start: true } })
    go(`/sandboxes/${id}`)
  }
  return (
    <Page title="New sandbox" lead="It starts at once. You can stop it, start it again and delete it at any time.">
      <div class="panel">
        <Form action="Create and start" onSubmit={create} more={<a href="/">Cancel</a>}>
          <div class="columns">
            <TextField
              label="Image"
              name="image"
              value={FIRST_IMAGE}
              isRequired
              hint="An OCI image, such as python:3.13. localhost/demo is always here."
            />
            <TextField label="Name" name="name" placeholder="chosen for you" hint="Unique in the organization." />
          </div>
          <div class="columns">
            <TextField
              label="Processors"
              name="vcpus"
              field="resources.vcpus"
              type="number"
              value="1"
              min={1}
              isRequired
            />
            <TextField
              label="Memory, MiB"
              name="memory_mib"
              field="resources.memory_mib"
              type="number"
              value="512"
              min={16}
              isRequired
            />
            <TextField
              label="Disk, MiB"
              name="disk_size_mib"
              field="resources.disk_size_mib"
              type="number"
              min={16}
              placeholder="as the worker chooses"
            />
          </div>
          <details>
            <summary>Workload, environment and labels</summary>
            <div class="stack">
              <TextField
                label="Command"
                name="cmd"
                field="runtime"
                placeholder="python3 -m http.server 8000"
                hint="Run by sh when the sandbox starts. Without one it waits for commands."
              />
              <div class="columns">
                <TextArea label="Environment" name="env" placeholder="STAGE=test" hint="One KEY=value a line." />
                <TextArea label="Labels" name="labels" placeholder="team=web" hint="One key=value a line." />
              </div>
            </div>
          </details>
          <details>
            <summary>Lifetime</summary>
            <div class="columns">
              <TextField
                label="Stop when unused for, minutes"
                name="idle_minutes"
                field="lifecycle.idle_timeout_secs"
                type="number"
                min={1}
                placeholder="never"
              />
              <TextField
                label="Stop after, minutes"
                name="max_minutes"
                field="lifecycle.max_duration_secs"
                type="number"
                min={1}
                placeholder="never"
              />
              <CheckField label="Delete it when it ends" name="ephemeral" />
            </div>
          </details>
          <details>
            <summary>Network and secrets</summary>
            <div class="stack">
              <SelectField
                label="What it may reach"
                name="network"
                value={network}
                choices={Object.entries(NETWORK_PRESETS).map(([value, { label }]) => ({ value, label }))}
                onPick={(value) => setNetwork(value as NetworkPreset)} // the choices are the presets
              />
              {network === 'names' ? (
                <TextArea
                  label="Names"
                  name="names"
                  field="network.policy"
                  placeholder={'pypi.org\n*.pythonhosted.org'}
                  hint="With *. the name and all below it."
                />
              ) : null}
              {network === 'custom' ? (
                <TextArea
                  label="Policy"
                  name="policy"
                  field="network.policy"
                  rows={12}
                  value={EXAMPLE_POLICY}
                  hint="The first rule that matches decides, else the default."
                />
              ) : null}
              <TextArea
                label="Secrets"
                name="secrets"
                field="network.secrets"
                placeholder="API_TOKEN=value @ api.example.com"
                hint="The sandbox sees a placeholder. The value is put into requests to these hosts alone."
              />
            </div>
          </details>
          <details>
            <summary>Volumes</summary>
            <MountsField />
          </details>
        </Form>
      </div>
    </Page>
  )
}

function MountsField() {
  const volumes = useLoad((signal) => get<readonly Volume[]>('/v1/volumes', { signal }), [])
  const names = (volumes.data ?? []).flatMap(({ name }) => (name === null || name === undefined ? [] : [name]))
  return (
    <Field
      label="Mounts"
      name="mounts"
      hint={
        names.length === 0
          ? 'One VOLUME:/path a line. There is no volume yet: make one on the page Volumes.'
          : `One VOLUME:/path a line, with :ro to read only. Volumes: ${names.join(', ')}.`
      }
    >
      {(attributes) => <textarea {...attributes} rows={2} placeholder="data:/srv/data" spellcheck={false} />}
    </Field>
  )
}
