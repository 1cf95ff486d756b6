// OpenAI's JavaScript client and its agents over the Realtime API: node realtime_clients.mjs URL MODEL; prints JSON.
import { OpenAIRealtimeWebSocket as AgentsWebSocket, RealtimeAgent, RealtimeSession, tool } from "@openai/agents-realtime";
import OpenAI from "openai";
import { OpenAIRealtimeWS } from "openai/realtime/ws";
import { z } from "zod";

const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused" });
const socket = `${url.replace("http", "ws")}/v1/realtime?model=${model}`;

async function plain() {
  const realtime = await OpenAIRealtimeWS.create(client, { model });
  let text = "";
  realtime.on("response.output_text.delta", (event) => (text += event.delta));
  realtime.on("session.created", () => {
    realtime.send({ type: "session.update", session: { type: "realtime", instructions: "Be a pirate." } });
    realtime.send({ type: "conversation.item.create", item: { type: "message", role: "user", content: [{ type: "input_text", text: "Hi" }] } });
    realtime.send({ type: "response.create" });
  });
  const { response } = await new Promise((yes, no) => {
    realtime.on("response.done", yes);
    realtime.on("error", no);
  });
  realtime.close();
  return { status: response.status, text };
}

async function agents(transport, apiKey) {
  const calls = [];
  const answers = [];
  const errors = [];
  let updates = 0;
  const weather = tool({
    name: "weather",
    description: "The weather of a city.",
    parameters: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      calls.push(city);
      return "rain";
    },
  });
  const agent = new RealtimeAgent({ name: "Assistant", instructions: "Help.", tools: [weather] });
  const session = new RealtimeSession(agent, { transport, model, config: { outputModalities: ["text"] } });
  session.on("error", ({ error }) => errors.push(String(error?.message ?? error)));
  const done = new Promise((yes) =>
    session.on("transport_event", (event) => {
      updates += event.type === "session.updated";
      if (event.type === "response.done" && answers.push(event.response.output[0].content?.[0].text ?? "a call") === 2) yes();
    }),
  );
  await session.connect({ apiKey, url: socket });
  session.sendMessage("What is the weather in Oslo?");
  await done;
  session.close();
  return { calls, answers, errors, updates };
}

const secret = await client.realtime.clientSecrets.create({ session: { type: "realtime", model } });
const found = { plain: await plain(), agents: await agents("websocket", "unused"), secret: await agents(new AgentsWebSocket({ url: socket }), secret.value) };
console.log(JSON.stringify(found));
process.exit(0);
